package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/formername"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// maxManifest is podsync's limit of a manifest.
	maxManifest = 10 << 20
	podsTimeout = 10 * time.Second
	waitDefault = 2 * time.Minute
	lookEvery   = 500 * time.Millisecond
)

// pods is a connection to podsync's face for root.
type pods struct {
	socket string
	local  podsyncv1.LocalPodServiceClient
	// explain answers questions about any pod.
	explain podsyncv1.ExplainServiceClient
	close   func() error
}

func dialPods(cfg *service.Config) (*pods, error) {
	socket := cfg.Socket(role.Podsync)
	if _, err := os.Stat(socket); err != nil {
		return nil, explainPods(err, socket)
	}
	conn, err := unixgrpc.Dial(socket, unixgrpc.DialOptions{Server: role.Podsync})
	if err != nil {
		return nil, err
	}
	return &pods{
		socket: socket, local: podsyncv1.NewLocalPodServiceClient(formername.Conn(conn)),
		explain: podsyncv1.NewExplainServiceClient(conn), close: conn.Close,
	}, nil
}

// askPodsync makes one call, and explains its failure.
func askPodsync[Question, Answer any](ctx context.Context, p *pods, question *Question,
	call func(context.Context, *Question, ...grpc.CallOption) (*Answer, error)) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	answer, err := call(ctx, question)
	if err != nil {
		return nil, explainPods(err, p.socket)
	}
	return answer, nil
}

var (
	errOnlyRoot  = errors.New("only root may ask podsync: use sudo")
	errNoPodsync = errors.New("podsync is not running")
)

// explainPods says what an operator can do about a request that failed.
func explainPods(err error, socket string) error {
	refusal := status.Convert(err)
	switch refusal.Code() {
	case codes.InvalidArgument, codes.AlreadyExists, codes.NotFound:
		return errors.New(refusal.Message())
	case codes.PermissionDenied, codes.Unauthenticated:
		return errOnlyRoot
	case codes.DeadlineExceeded:
		return fmt.Errorf("podsync does not answer on %s within %v: see microlet status", socket, podsTimeout)
	case codes.Unimplemented:
		return fmt.Errorf("podsync on %s is of an older version, which cannot do this: restart it", socket)
	}
	if errors.Is(err, os.ErrNotExist) || refusal.Code() == codes.Unavailable {
		return fmt.Errorf("%w: nothing serves %s; start microlet up, or name its --runtime-dir", errNoPodsync, socket)
	}
	if errors.Is(err, os.ErrPermission) {
		return errOnlyRoot
	}
	return fmt.Errorf("ask podsync on %s: %w", socket, err)
}

func newRunPod() *cobra.Command {
	cfg := service.DefaultConfig()
	wait, timeout := false, waitDefault
	cmd := &cobra.Command{
		Use:   "run-pod FILE",
		Short: "Run a pod on this node from a manifest, with or without a cluster",
		Long: `Run a pod on this node from a manifest, YAML or JSON of a Pod, with or without a cluster. "-" reads the
standard input. The pod is a static pod: it may name no object of the API, and its name ends with the node's.
It runs until "microlet rm-pod", also after a restart of the node. A changed manifest of the same pod replaces it.
With a cluster, a mirror pod shows it there. Only root may do this.`,
		Example: "  microlet run-pod web.yaml --wait\n  generate-pod | microlet run-pod -",
		Args:    service.OneArgument(`the manifest's file, or "-" for the standard input`),
	}
	addRuntimeDir(cmd, &cfg)
	cmd.Flags().BoolVar(&wait, "wait", wait,
		"wait until the pod is ready or has succeeded, and fail if it does not come to that")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkPositive("timeout", timeout); err != nil {
			return err
		}
		manifest, err := readManifest(cmd.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		p, err := dialPods(&cfg)
		if err != nil {
			return errors.Join(judgeUnasked(err, args[0], manifest), err)
		}
		defer func() { _ = p.close() }() // what it was for has been answered
		answer, err := askPodsync(cmd.Context(), p, &podsyncv1.RunPodRequest{Manifest: manifest}, p.runPod(args[0]))
		if err != nil {
			return errors.Join(judgeUnasked(err, args[0], manifest), err)
		}
		did := strings.ToLower(strings.TrimPrefix(answer.GetOutcome().String(), "OUTCOME_"))
		fmt.Fprintf(cmd.OutOrStdout(), "pod %s %s, uid %s\n", fullName(answer.GetPod()), did, answer.GetPod().GetUid())
		if !wait {
			return nil
		}
		return p.awaitReady(cmd.Context(), cmd.OutOrStdout(), answer.GetPod(), timeout)
	}
	return cmd
}

// judgeUnasked is what is wrong with a manifest that podsync could not be asked about, since it does not run.
func judgeUnasked(err error, name string, manifest []byte) error {
	if !errors.Is(err, errNoPodsync) {
		return nil
	}
	return judgeStatic(name, manifest)
}

// runPod is RunPod for a manifest of that name, which an answer about it begins with.
func (p *pods) runPod(name string) func(context.Context, *podsyncv1.RunPodRequest, ...grpc.CallOption) (
	*podsyncv1.RunPodResponse, error) {
	return func(ctx context.Context, r *podsyncv1.RunPodRequest, o ...grpc.CallOption) (*podsyncv1.RunPodResponse, error) {
		answer, err := p.local.RunPod(ctx, r, o...)
		if status.Code(err) == codes.InvalidArgument {
			err = status.Errorf(codes.InvalidArgument, "%s: %s", name, status.Convert(err).Message())
		}
		return answer, err
	}
}

func newRemovePod() *cobra.Command {
	cfg := service.DefaultConfig()
	namespace, wait, timeout := v1.NamespaceDefault, false, waitDefault
	cmd := &cobra.Command{
		Use:   "rm-pod NAME|UID",
		Short: "End a pod that run-pod began",
		Long: `End a pod that run-pod began, within its grace period. The name may be the manifest's or the pod's, which ends
with the node's name. Only root may do this.`,
		Args: service.OneArgument("the pod's name or UID"),
	}
	addRuntimeDir(cmd, &cfg)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", namespace, "the pod's namespace")
	cmd.Flags().BoolVar(&wait, "wait", wait, "wait until nothing of the pod is left on the node")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completePods(cmd.Context(), &cfg, namespace), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkPositive("timeout", timeout); err != nil {
			return err
		}
		p, err := dialPods(&cfg)
		if err != nil {
			return err
		}
		defer func() { _ = p.close() }() // what it was for has been answered
		answer, err := askPodsync(cmd.Context(), p,
			&podsyncv1.RemovePodRequest{Name: args[0], Namespace: namespace}, p.local.RemovePod)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "pod %s is ending\n", fullName(answer.GetPod()))
		if !wait {
			return nil
		}
		return p.awaitGone(cmd.Context(), cmd.OutOrStdout(), answer.GetPod(), timeout)
	}
	return cmd
}

// completePods are the names that rm-pod can be given.
func completePods(ctx context.Context, cfg *service.Config, namespace string) []string {
	p, err := dialPods(cfg)
	if err != nil {
		return nil
	}
	defer func() { _ = p.close() }() // the shell wants names and no errors
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := p.local.ListLocalPods(ctx, &podsyncv1.ListLocalPodsRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, pod := range answer.GetPods() {
		if pod.GetNamespace() == namespace {
			names = append(names, pod.GetName())
		}
	}
	return names
}

func fullName(p *podsyncv1.LocalPod) string { return p.GetNamespace() + "/" + p.GetName() }

// readManifest reads what podsync is given: a file, or the standard input for "-".
func readManifest(in io.Reader, name string) ([]byte, error) { return readFile(in, name, maxManifest) }

// readFile reads a file, or the standard input for "-", that is not longer than a limit.
func readFile(in io.Reader, name string, limit int64) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, unreadManifest(name, err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	switch {
	case err != nil:
		return nil, unreadManifest(name, err)
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("manifest %s: it is longer than %d bytes: give its pods in several files", name, limit)
	case len(data) == 0:
		return nil, fmt.Errorf("manifest %s: it is empty: give one of a Pod", name)
	}
	return data, nil
}

func unreadManifest(name string, err error) error {
	return fmt.Errorf("manifest %s: %w", name, unread(err))
}

// awaitReady waits until the pod is ready or has ended, and reports each change of its state.
func (p *pods) awaitReady(ctx context.Context, out io.Writer, pod *podsyncv1.LocalPod, timeout time.Duration) error {
	last := ""
	return p.look(ctx, pod, timeout, func(s *v1.PodStatus, gone bool) (bool, error) {
		if gone {
			return true, fmt.Errorf("pod %s was removed while it was waited for", fullName(pod))
		}
		state, done, failed := describe(s)
		if state != last {
			last = state
			fmt.Fprintf(out, "pod %s: %s\n", fullName(pod), state)
		}
		if failed {
			return true, fmt.Errorf("pod %s has failed", fullName(pod))
		}
		return done, nil
	}, func() string { return "not ready: " + last })
}

func (p *pods) awaitGone(ctx context.Context, out io.Writer, pod *podsyncv1.LocalPod, timeout time.Duration) error {
	return p.look(ctx, pod, timeout, func(_ *v1.PodStatus, gone bool) (bool, error) {
		if gone {
			fmt.Fprintf(out, "pod %s is gone\n", fullName(pod))
		}
		return gone, nil
	}, func() string { return "still there" })
}

// look asks for the pod's status again and again, until judge says that it is over. A podsync that restarts meanwhile
// is waited for.
func (p *pods) look(ctx context.Context, pod *podsyncv1.LocalPod, timeout time.Duration,
	judge func(s *v1.PodStatus, gone bool) (bool, error), late func() string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		answer, err := p.local.GetLocalPod(ctx, &podsyncv1.GetLocalPodRequest{Uid: pod.GetUid()})
		code := status.Code(err)
		if err == nil || code == codes.NotFound {
			s := &v1.PodStatus{}
			if err := s.Unmarshal(answer.GetStatus()); err != nil {
				return fmt.Errorf("decode the pod's status: %w", err)
			}
			if over, err := judge(s, code == codes.NotFound); over || err != nil {
				return err
			}
		} else if code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled {
			return explainPods(err, p.socket)
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.Canceled) {
				return context.Canceled
			}
			return fmt.Errorf("pod %s after %v: %s", fullName(pod), timeout, late())
		case <-ticker.C:
		}
	}
}

// describe puts a status into words, and reports whether it is what was waited for.
func describe(s *v1.PodStatus) (state string, done, failed bool) {
	switch s.Phase {
	case v1.PodSucceeded:
		return "succeeded", true, false
	case v1.PodFailed:
		return strings.TrimRight("failed: "+s.Reason+" "+s.Message, ": "), false, true
	}
	if c := podutil.Condition(s.Conditions, v1.PodReady); c != nil && c.Status == v1.ConditionTrue {
		return "ready", true, false
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Message != "" {
				return "waiting, container " + list[i].Name + ": " + w.Reason + ": " + w.Message, false, false
			}
		}
	}
	if s.Phase == "" {
		return "waiting", false, false
	}
	return strings.ToLower(string(s.Phase)), false, false
}
