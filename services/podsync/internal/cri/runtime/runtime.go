package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/podsync/internal/cri/internal/calllimit"
)

// defaultTimeout is KubeletConfiguration's runtimeRequestTimeout when it is not set.
const defaultTimeout = 2 * time.Minute

// Options of a Runtime.
type Options struct {
	Limits calllimit.Limits
	// Timeout of a call; KubeletConfiguration's runtimeRequestTimeout. 0 is 2 m.
	// RunPodSandbox has twice as long, StopContainer the grace period on top, and
	// PullImage none but its caller's, as with the kubelet.
	Timeout time.Duration
	// ReadConcurrency is how many status calls one read has in flight. 0 is 8.
	ReadConcurrency int
	// PodLogsDir is podLogsDir, below which the logs of all containers are. None elsewhere is read.
	PodLogsDir string
	// PodsDir has the folders of pods, with the files that podsync makes for termination messages. Foreign reads other
	// files; nil reads none.
	PodsDir string
	Foreign childpool.Runner
	Log     *slog.Logger
	// Metrics are registered here; nil registers none.
	Metrics prometheus.Registerer
}

// Runtime reads and changes what the runtime has. It is safe for concurrent use.
type Runtime struct {
	cri     runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	limiter *calllimit.Limiter
	lists   *crilist.Lister
	opts    Options
	known   known
	sandbox *sandboxMetrics
}

// sandboxMetrics are the kubelet's metrics of sandbox starts.
type sandboxMetrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

// New returns a Runtime that speaks through these connections: Services.Runtime and
// Services.Image of Dial.
func New(rt, images grpc.ClientConnInterface, opts Options) (*Runtime, error) {
	if opts.Timeout < 0 || opts.ReadConcurrency < 0 {
		return nil, fmt.Errorf("runtime timeout %s and read concurrency %d must not be negative; 0 is the default",
			opts.Timeout, opts.ReadConcurrency)
	}
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.ReadConcurrency == 0 {
		opts.ReadConcurrency = 8
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	limiter, err := calllimit.New(opts.Limits, opts.Metrics)
	if err != nil {
		return nil, err
	}
	m := &sandboxMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_run_podsandbox_duration_seconds",
			Help:    "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
			Buckets: prometheus.DefBuckets,
		}, []string{"runtime_handler"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_run_podsandbox_errors_total",
			Help: "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
		}, []string{"runtime_handler"}),
	}
	if err := register(opts.Metrics, m.duration, m.errors); err != nil {
		return nil, err
	}
	return &Runtime{
		cri: runtimeapi.NewRuntimeServiceClient(rt), images: runtimeapi.NewImageServiceClient(images),
		lists:   crilist.New(rt, images, crilist.Options{Pods: opts.podFolders, Log: opts.Log, Metrics: opts.Metrics}),
		limiter: limiter, opts: opts, sandbox: m,
	}, nil
}

// Lists reads the runtime's lists, however large they are.
func (r *Runtime) Lists() *crilist.Lister { return r.lists }

// podFolders returns the UIDs of the pods that have a folder. Each pod has one before its first sandbox.
func (o Options) podFolders() ([]string, error) {
	entries, err := os.ReadDir(o.PodsDir)
	if err != nil {
		return nil, err
	}
	var uids []string
	for _, e := range entries {
		uids = append(uids, e.Name())
	}
	return uids, nil
}

// classOf is the class of a call that begins, or goes on with, a pod.
func classOf(urgent, begun bool) calllimit.Class {
	switch {
	case urgent:
		return calllimit.Urgent
	case begun:
		return calllimit.Begun
	default:
		return calllimit.Usual
	}
}

// bounded runs a call in one of the limiter's slots, with a deadline that counts from
// when it has the slot.
func (r *Runtime) bounded(ctx context.Context, class calllimit.Class, timeout time.Duration,
	call func(context.Context) error) error {
	done, err := r.limiter.Acquire(ctx, class)
	if err != nil {
		return fmt.Errorf("wait for a slot among the runtime's calls: %w", err)
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// RunSandbox creates and starts a sandbox and returns its id. handler is the runtime
// class's, empty for the default. urgent is true for host-network and critical pods.
func (r *Runtime) RunSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string,
	urgent bool) (string, error) {
	var id string
	err := r.bounded(ctx, classOf(urgent, false), 2*r.opts.Timeout, func(ctx context.Context) error {
		begun := time.Now()
		resp, err := r.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
		r.sandbox.duration.WithLabelValues(handler).Observe(time.Since(begun).Seconds())
		if err != nil {
			r.sandbox.errors.WithLabelValues(handler).Inc()
			return err
		}
		id = resp.GetPodSandboxId()
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("run sandbox: %w", err)
	}
	if id == "" {
		return "", fmt.Errorf("run sandbox of pod %s: the runtime returned no id", cfg.GetMetadata().GetUid())
	}
	return id, nil
}

// CreateContainer creates a container. Its error is a *CreateError.
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig,
	sandbox *runtimeapi.PodSandboxConfig, urgent bool) (string, error) {
	var id string
	err := r.bounded(ctx, classOf(urgent, true), r.opts.Timeout, func(ctx context.Context) error {
		resp, err := r.cri.CreateContainer(ctx,
			&runtimeapi.CreateContainerRequest{PodSandboxId: sandboxID, Config: cfg, SandboxConfig: sandbox})
		id = resp.GetContainerId()
		return err
	})
	if err == nil && id == "" {
		err = fmt.Errorf("the runtime returned no id")
	}
	if err != nil {
		return "", &CreateError{Container: cfg.GetMetadata().GetName(), Err: err}
	}
	return id, nil
}

// Start starts a created container. Its error is a *StartError.
func (r *Runtime) Start(ctx context.Context, id, name string, urgent bool) error {
	err := r.bounded(ctx, classOf(urgent, true), r.opts.Timeout, func(ctx context.Context) error {
		_, err := r.cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
	if err != nil {
		return &StartError{Container: name, ID: id, Err: err}
	}
	return nil
}

// Check looks at a container that was created, before it is started. A *RefusedError says that it may not be.
type Check func(ctx context.Context, id string) error

// StartContainer creates a container and starts it, unless the check, if there is one, fails: then it is removed again.
// An error is a *CreateError, a *RefusedError, or a *StartError with the id of what was created; id is returned then
// too.
func (r *Runtime) StartContainer(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig,
	sandbox *runtimeapi.PodSandboxConfig, urgent bool, check Check) (id string, err error) {
	id, err = r.CreateContainer(ctx, sandboxID, cfg, sandbox, urgent)
	if err != nil {
		return "", err
	}
	if check != nil {
		if err := check(ctx, id); err != nil {
			err = errors.Join(err, r.RemoveContainer(ctx, id))
			if refused := (*RefusedError)(nil); errors.As(err, &refused) {
				return "", err
			}
			return "", &CreateError{Container: cfg.GetMetadata().GetName(), Err: err}
		}
	}
	return id, r.Start(ctx, id, cfg.GetMetadata().GetName(), urgent)
}

// StopContainer asks the container to end and kills it when grace is over. It returns
// when the container has ended. Grace is rounded up to whole seconds.
func (r *Runtime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	seconds := int64((max(grace, 0) + time.Second - 1) / time.Second)
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout+time.Duration(seconds)*time.Second)
	defer cancel()
	_, err := r.cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return unlessGone("stop container", id, err)
}

// ExecSync runs a command in a container and returns what it printed and its exit code. It
// ends with ctx, or after timeout if that is not 0.
func (r *Runtime) ExecSync(ctx context.Context, id string, command []string,
	timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+r.opts.Timeout) // the runtime's own end of the command comes first
		defer cancel()
	}
	resp, err := r.cri.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: id, Cmd: command, Timeout: int64((timeout + time.Second - 1) / time.Second),
	})
	return resp.GetStdout(), resp.GetStderr(), resp.GetExitCode(), err
}

// RemoveContainer removes a container, and kills it first if it runs.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	return r.removeContainer(ctx, calllimit.Usual, id)
}

func (r *Runtime) removeContainer(ctx context.Context, class calllimit.Class, id string) error {
	err := r.bounded(ctx, class, r.opts.Timeout, func(ctx context.Context) error {
		_, err := r.cri.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	})
	return unlessGone("remove container", id, err)
}

// StopSandbox stops a sandbox and all that runs in it, and takes its network down.
func (r *Runtime) StopSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	_, err := r.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return unlessGone("stop sandbox", id, err)
}

// RemoveSandbox removes a sandbox and its containers.
func (r *Runtime) RemoveSandbox(ctx context.Context, id string) error {
	return r.removeSandbox(ctx, calllimit.Usual, id)
}

func (r *Runtime) removeSandbox(ctx context.Context, class calllimit.Class, id string) error {
	err := r.bounded(ctx, class, r.opts.Timeout, func(ctx context.Context) error {
		_, err := r.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
	return unlessGone("remove sandbox", id, err)
}

// LowPriority is a Runtime with removals that let everything else go first.
type LowPriority struct{ *Runtime }

// RemoveContainer removes a container, when the runtime has nothing better to do.
func (l LowPriority) RemoveContainer(ctx context.Context, id string) error {
	return l.removeContainer(ctx, calllimit.Idle, id)
}

// RemoveSandbox removes a sandbox, when the runtime has nothing better to do.
func (l LowPriority) RemoveSandbox(ctx context.Context, id string) error {
	return l.removeSandbox(ctx, calllimit.Idle, id)
}

// unlessGone wraps err; that the thing is not there is what was wanted.
func unlessGone(what, id string, err error) error {
	if err == nil || crierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, id, err)
}

// Status returns the runtime's conditions and its handlers' features.
func (r *Runtime) Status(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	resp, err := r.cri.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("read the runtime's status: %w", err)
	}
	if len(resp.GetStatus().GetConditions()) < 2 {
		return nil, fmt.Errorf("read the runtime's status: it must have the conditions %s and %s, not %v",
			runtimeapi.RuntimeReady, runtimeapi.NetworkReady, resp.GetStatus().GetConditions())
	}
	return resp, nil
}

// Version returns the runtime's name and version.
func (r *Runtime) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	resp, err := r.cri.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("read the runtime's version: %w", err)
	}
	return resp, nil
}

// RuntimeConfig returns the runtime's configuration, which names its cgroup driver. A
// runtime that does not know the call answers with an error that IsUnimplemented.
func (r *Runtime) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	resp, err := r.cri.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		return nil, fmt.Errorf("read the runtime's configuration: %w", err)
	}
	return resp, nil
}

// UpdatePodCIDR passes the node's pod CIDR to the runtime.
func (r *Runtime) UpdatePodCIDR(ctx context.Context, cidr string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	_, err := r.cri.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}},
	})
	if err != nil {
		return fmt.Errorf("update the runtime's pod CIDR to %s: %w", cidr, err)
	}
	return nil
}

// ImageStatus returns what the runtime has of an image; its Image is nil when it has none.
func (r *Runtime) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	resp, err := r.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: image})
	if err != nil {
		return nil, err
	}
	if img := resp.GetImage(); img != nil && (img.Id == "" || img.Size == 0) {
		return nil, fmt.Errorf("the runtime returned no id or no size of image %q", image.GetImage())
	}
	return resp.GetImage(), nil
}

// ListImages returns all images.
func (r *Runtime) ListImages(ctx context.Context) ([]*runtimeapi.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	return crilist.Collect(r.lists.Images(ctx))
}

// PullImage pulls an image and returns its reference. auth may be nil. It has no
// deadline of its own, since a large image may take hours: the runtime ends a pull that
// makes no progress, and the caller's context ends it at any time.
func (r *Runtime) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
	sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := r.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	if resp.GetImageRef() == "" {
		return "", fmt.Errorf("imageRef of image %q is not set", image.GetImage())
	}
	return resp.ImageRef, nil
}

// RemoveImage removes an image, under all of its names. One that is not there is no error.
func (r *Runtime) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	_, err := r.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: image})
	return err
}
