package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/httpaction"
	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/shares"
)

const (
	// maxOutput bounds what is kept of an answer, as in the kubelet.
	maxOutput = 10 << 10
	// maxHeader bounds the headers of an answer. They take sixteen times as much memory when the lines are short, for as
	// long as the probe may wait, and a node has thousands of probes. The kubelet takes 10 MiB, and many clients 8 KiB.
	maxHeader = 16 << 10
	// userAgent is the kubelet's of the version that this stands in for: servers filter on it.
	userAgent = "kube-probe/" + kubeversion.MajorMinor
)

// Outcome of a probe that could be run.
type Outcome int

// The outcomes.
const (
	Success Outcome = iota + 1
	// Warning is a success with something to report.
	Warning
	Failure
)

// Result is what a probe found.
type Result struct {
	Outcome Outcome
	// Output is what events contain: the kubelet's words, or what the command printed.
	Output string
}

func failure(format string, args ...any) (Result, error) {
	return Result{Failure, fmt.Sprintf(format, args...)}, nil
}

// ErrUnreachable is wrapped by the error of a probe that never got as far as the node's runtime or
// plugin: the one that is down is being restarted, and the probe is to be run again soon.
var ErrUnreachable = errors.New("what runs the probe cannot be reached")

// ErrBroken is wrapped by the error of a probe if its target began to answer and did not end. The kubelet gives no
// result then either.
var ErrBroken = errors.New("the answer broke off")

// Target is what is probed.
type Target struct {
	// Probe as the pod spells it, with the apiserver's defaults.
	Probe *v1.Probe
	// Container of the pod, for its ports and variables.
	Container *v1.Container
	// ContainerID is bare.
	ContainerID string
	// PodIP is the pod's primary address; the node's for a pod on the host's network.
	PodIP string
	// Kind is what the probe is for: "readiness", "liveness" or "startup".
	Kind string
	// Plugin names what probes instead of the built-in handlers; empty for none.
	Plugin string
	// Pod that the container is of.
	Pod *v1.Pod
}

func (t *Target) timeout() time.Duration {
	return time.Duration(max(t.Probe.TimeoutSeconds, 1)) * time.Second
}

// Plugins probe in the node owner's way; see package plugin.
type Plugins interface {
	Probe(ctx context.Context, t Target) (Result, error)
}

// Options of a Prober.
type Options struct {
	// Runtime is the node's CRI, of which ExecSync is called.
	Runtime runtimeapi.RuntimeServiceClient
	// Execs bounds how many commands run at one time.
	Execs int
	// H2C honours httpGet.protocol HTTP2, and GRPCTLS grpc.mode TLS: the kubelet's feature gates
	// H2CContainerProbe and GRPCContainerProbeTLS.
	H2C, GRPCTLS bool
	// Plugins run the probes that name one; nil knows none.
	Plugins Plugins
}

// Prober runs probes. Its methods may be called from any goroutine.
type Prober struct {
	o     Options
	http  httpClients
	execs places
}

// New returns a prober.
func New(o Options) *Prober {
	return &Prober{o: o, http: newHTTPClients(), execs: places{shares.New(o.Execs)}}
}

// Probe runs the probe once. An error says that it could not be run, or not to a result; ErrUnreachable
// in it, that this is no fault of the pod.
func (p *Prober) Probe(ctx context.Context, t Target) (Result, error) {
	switch h := &t.Probe.ProbeHandler; {
	case t.Plugin != "":
		if p.o.Plugins == nil {
			return Result{}, fmt.Errorf("probe plugin %q is not installed: this node has no plugin folder", t.Plugin)
		}
		return p.o.Plugins.Probe(ctx, t)
	case h.Exec != nil:
		return p.exec(ctx, t)
	case h.HTTPGet != nil:
		return p.httpGet(ctx, t)
	case h.TCPSocket != nil:
		return p.tcp(ctx, t)
	case h.GRPC != nil:
		return p.grpc(ctx, t)
	default:
		return Result{}, fmt.Errorf("missing probe handler for container %s", t.Container.Name)
	}
}

// Endpoint returns the host and port that a probe's handler names; a plugin is given them.
func Endpoint(t Target) (host string, port int, err error) {
	h := &t.Probe.ProbeHandler
	switch {
	case h.HTTPGet != nil:
		host = h.HTTPGet.Host
		port, err = httpaction.Port(h.HTTPGet.Port, t.Container)
	case h.TCPSocket != nil:
		host = h.TCPSocket.Host
		port, err = httpaction.Port(h.TCPSocket.Port, t.Container)
	case h.GRPC != nil:
		port = int(h.GRPC.Port)
	}
	if host == "" {
		host = t.PodIP
	}
	return host, port, err
}
