package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	v1 "k8s.io/api/core/v1"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/expansion"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// denialLogPeriod is how often refusals of one role, method and reason are logged. All are counted.
const denialLogPeriod = 10 * time.Second

// Containers are those of the node's pods; see containers.Index.
type Containers interface {
	// Find returns a container's pod and its place in the pod's spec.
	Find(id string) (p *v1.Pod, spec *v1.Container, ok bool)
	// Complete reports whether a container that is not found is no pod's.
	Complete() bool
}

// Why calls are denied, in metrics and log lines.
const (
	reasonMethod    = "method"
	reasonField     = "unknown_field"
	reasonVerbose   = "verbose"
	reasonContainer = "container"
	reasonCommand   = "command"
	reasonTimeout   = "timeout"
	reasonLocation  = "location"
)

// denial is the refusal of what a role may not ask for.
type denial struct{ reason, message string }

func deny(reason, format string, args ...any) error {
	return &denial{reason, fmt.Sprintf(format, args...)}
}

func (d *denial) Error() string { return d.message }

// GRPCStatus makes it a status.
func (d *denial) GRPCStatus() *status.Status { return status.New(codes.PermissionDenied, d.message) }

// check decides about one request and returns it as it goes on.
type check func(g *Gateway, request []byte) ([]byte, error)

// checked decodes a request for a rule. What goes on is what the rule has seen, encoded again, so that the runtime
// cannot read it in another way; and a request with a field that was unknown when the rule was written is denied.
func checked[T any, M interface {
	*T
	proto.Message
}](rule func(*Gateway, M) error) check {
	return func(g *Gateway, request []byte) ([]byte, error) {
		m := M(new(T))
		if err := proto.Unmarshal(request, m); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "the request is no %s: %v",
				m.ProtoReflect().Descriptor().Name(), err)
		}
		if field := unknownField(m.ProtoReflect()); field != "" {
			return nil, deny(reasonField, "the CRI gateway does not know a field of the request: %s", field)
		}
		if err := rule(g, m); err != nil {
			return nil, err
		}
		return proto.Marshal(m)
	}
}

// unknownField names a message that has a field which this program's CRI does not have.
func unknownField(m protoreflect.Message) (in string) {
	if len(m.GetUnknown()) > 0 {
		return string(m.Descriptor().FullName())
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap() && field.MapValue().Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				in = unknownField(value.List().Get(i).Message())
				if in != "" {
					break
				}
			}
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
				in = unknownField(item.Message())
				return in == ""
			})
		default:
			in = unknownField(value.Message())
		}
		return in == ""
	})
	return in
}

// terse denies the verbose form of a status, in which runtimes show what the services must not see: the
// environment of containers, with the values of Secrets, and the credentials for registries.
func terse[M interface{ GetVerbose() bool }](_ *Gateway, m M) error {
	if m.GetVerbose() {
		return deny(reasonVerbose, "verbose is not passed on: it shows the containers' environment and the runtime's "+
			"credentials; ask the runtime's own socket")
	}
	return nil
}

// find returns a container that the request names.
func (g *Gateway) find(id string) (*v1.Pod, *v1.Container, error) {
	// Asked first: what is found missing after all was complete is missing.
	complete := g.opts.Containers.Complete()
	p, c, ok := g.opts.Containers.Find(id)
	switch {
	case ok:
		return p, c, nil
	case !complete:
		return nil, nil, status.Errorf(codes.Unavailable,
			"podsync has started and does not know all containers yet, %q is not among them: try again", id)
	default:
		return nil, nil, deny(reasonContainer, "container %q is of no pod on this node", id)
	}
}

// probeCommand lets a command pass that an exec probe of this very container declares, for no longer than
// the probe's timeout.
func probeCommand(g *Gateway, r *runtimeapi.ExecSyncRequest) error {
	p, c, err := g.find(r.GetContainerId())
	if err != nil {
		return err
	}
	longest := int64(0)
	for _, probe := range []*v1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if probe == nil || probe.Exec == nil {
			continue
		}
		// A command that is too long to run is none that the prober asks for.
		if command, err := expansion.Command(probe.Exec.Command, c.Env); err == nil && slices.Equal(r.GetCmd(), command) {
			longest = max(longest, int64(probe.TimeoutSeconds), 1)
		}
	}
	if longest == 0 {
		return deny(reasonCommand, "the command is no exec probe of container %s of pod %s/%s (%s)", c.Name,
			p.Namespace, p.Name, r.GetContainerId())
	}
	if r.GetTimeout() < 1 || r.GetTimeout() > longest {
		return deny(reasonTimeout, "timeout is %d s: the probe of container %s of pod %s/%s has 1 to %d s",
			r.GetTimeout(), c.Name, p.Namespace, p.Name, longest)
	}
	return nil
}

// checkpointFile lets a checkpoint be written to a new file of the folder for checkpoints, by the kubelet's
// name for it. The runtime makes the file as root, and would follow a link.
func checkpointFile(g *Gateway, r *runtimeapi.CheckpointContainerRequest) error {
	p, c, err := g.find(r.GetContainerId())
	if err != nil {
		return err
	}
	location := r.GetLocation()
	if filepath.Clean(location) != location || filepath.Dir(location) != g.opts.Checkpoints {
		return deny(reasonLocation, "location %q is not a file of %s", location, g.opts.Checkpoints)
	}
	prefix := fmt.Sprintf("checkpoint-%s_%s-%s-", p.Name, p.Namespace, c.Name)
	rest, named := strings.CutPrefix(filepath.Base(location), prefix)
	taken, suffixed := strings.CutSuffix(rest, ".tar")
	if _, err := time.Parse(time.RFC3339, taken); !named || !suffixed || err != nil {
		return deny(reasonLocation, "location %q is not named %s<time>.tar, with a time as %s", location, prefix,
			time.RFC3339)
	}
	folder, err := os.Lstat(g.opts.Checkpoints)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "the folder for checkpoints: %v", err)
	}
	if owner, ok := folder.Sys().(*syscall.Stat_t); !ok || !folder.IsDir() || folder.Mode().Perm()&0o077 != 0 ||
		int(owner.Uid) != os.Geteuid() {
		return deny(reasonLocation, "%s must be a folder, no link, that root alone may enter (0700); it is %s",
			g.opts.Checkpoints, folder.Mode())
	}
	switch _, err := os.Lstat(location); {
	case err == nil:
		return status.Errorf(codes.AlreadyExists, "checkpoint %s exists already", location)
	case !errors.Is(err, fs.ErrNotExist):
		return status.Errorf(codes.FailedPrecondition, "the checkpoint's file: %v", err)
	}
	return nil
}

// mayCall denies a method that the role does not have.
func (g *Gateway) mayCall(ctx context.Context, r role.Role, method string) error {
	if Allowed(r, method) {
		return nil
	}
	err := deny(reasonMethod, "role %s may not call %s: the CRI gateway does not give it that method", r, method)
	g.reportDenial(ctx, r, method, err)
	return err
}

// mayAsk returns a request as it may go on, or why it may not.
func (g *Gateway) mayAsk(ctx context.Context, r role.Role, method string, request []byte) ([]byte, error) {
	check := checks[r][nameOf(method)]
	if check == nil {
		return request, nil
	}
	request, err := check(g, request)
	if err != nil {
		g.reportDenial(ctx, r, method, err)
		return nil, err
	}
	return request, nil
}

// reportDenial counts and logs a denial; other errors are no denials.
func (g *Gateway) reportDenial(ctx context.Context, r role.Role, method string, err error) {
	var d *denial
	if !errors.As(err, &d) {
		return
	}
	g.denied.WithLabelValues(string(r), nameOf(method), d.reason).Inc()
	if g.mayLog(string(r) + " " + method + " " + d.reason) {
		caller, _ := unixgrpc.PeerOf(ctx)
		g.opts.Log.Warn("CRI call denied", logkey.Role, r, logkey.Method, method, logkey.Reason, d.reason,
			logkey.Message, d.message,
			logkey.UID, caller.UID, logkey.PID, caller.PID)
	}
}

// mayLog bounds what a caller can write into the log.
func (g *Gateway) mayLog(what string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if last, ok := g.logged[what]; ok && now.Sub(last) < denialLogPeriod {
		return false
	}
	g.logged[what] = now
	return true
}
