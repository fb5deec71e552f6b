package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// Exec runs a command in a container and waits for its end. A timeout of 0 is none.
type Exec interface {
	ExecSync(ctx context.Context, containerID string, command []string,
		timeout time.Duration) (stdout, stderr []byte, exitCode int32, err error)
}

// Options of a Runner. Exec and Events are needed.
type Options struct {
	Exec   Exec
	Events record.EventRecorder
	// PodsDir has the folders of the pods, in which the long annotations of containers are.
	PodsDir string
	// Log; nil stands for the default logger.
	Log *slog.Logger
	// Metrics takes the kubelet's metrics of hooks; nil leaves them unregistered.
	Metrics prometheus.Registerer
}

// Input is the container that a hook belongs to.
type Input struct {
	Pod         *v1.Pod
	Container   *v1.Container
	ContainerID string
	// PodIP is where httpGet goes when it names no host: the pod's first address, or the
	// node's for a pod on the host's network.
	PodIP string
}

// Runner runs hooks. It is safe for concurrent use.
type Runner struct {
	opts   Options
	client *http.Client

	fallbacks, cutSleeps prometheus.Counter
}

// New returns a Runner.
func New(o Options) (*Runner, error) {
	if o.Exec == nil || o.Events == nil {
		return nil,
			errors.New("hook: Options.Exec and Options.Events are needed: give the runtime and the event recorder")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	r := &Runner{
		opts: o, client: newClient(),
		fallbacks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_lifecycle_handler_http_fallbacks_total",
			Help: "The number of times lifecycle handlers successfully fell back to http from https.",
		}),
		cutSleeps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_sleep_action_terminated_early_total",
			Help: "The number of times lifecycle sleep handler got terminated before it finishes",
		}),
	}
	if o.Metrics != nil {
		for _, c := range []prometheus.Collector{r.fallbacks, r.cutSleeps} {
			if err := o.Metrics.Register(c); err != nil {
				return nil, fmt.Errorf("register the metrics of hooks: %w", err)
			}
		}
	}
	return r, nil
}

// Error is a hook that failed, in the kubelet's words.
type Error struct {
	message string
	err     error
}

func (e *Error) Error() string { return e.message }
func (e *Error) Unwrap() error { return e.err }

// Run runs a hook until it has ended or ctx has. Its error is an *Error.
func (r *Runner) Run(ctx context.Context, in Input, handler *v1.LifecycleHandler) error {
	where := fmt.Sprintf("for Container %q in Pod %q failed - error: ", in.Container.Name, podText(in.Pod))
	switch {
	case handler.Exec != nil:
		output, err := r.exec(ctx, in, handler.Exec)
		if err != nil {
			return &Error{fmt.Sprintf("Exec lifecycle hook (%v) %s%v, message: %q", handler.Exec.Command, where, err, output),
				err}
		}
	case handler.HTTPGet != nil:
		if err := r.httpGet(ctx, in, handler.HTTPGet); err != nil {
			return &Error{fmt.Sprintf("HTTP lifecycle hook (%s) %s%v", handler.HTTPGet.Path, where, err), err}
		}
	case handler.Sleep != nil:
		if err := r.sleep(ctx, handler.Sleep); err != nil {
			return &Error{fmt.Sprintf("Sleep lifecycle hook (%d) %s%v", handler.Sleep.Seconds, where, err), err}
		}
	default:
		err := fmt.Errorf("invalid handler: %v", handler)
		return &Error{"Cannot run handler: " + err.Error(), err}
	}
	return nil
}

// maxOutput is how much is shown of each of a command's outputs. The kubelet shows up to 32 MiB, but the API server
// refuses the status of a pod with such a message: it takes 3 MiB.
const maxOutput = 4 << 10

// exec returns the beginning of what the command printed if it failed.
func (r *Runner) exec(ctx context.Context, in Input, action *v1.ExecAction) (output string, err error) {
	stdout, stderr, code, err := r.opts.Exec.ExecSync(ctx, in.ContainerID, action.Command, 0)
	stdout, stderr = beginning(stdout), beginning(stderr)
	switch {
	case err != nil:
	case code != 0:
		err = fmt.Errorf("command '%s' exited with %d: %s", strings.Join(action.Command, " "), code, stderr)
	default:
		return "", nil
	}
	return string(stdout) + string(stderr), err
}

// beginning cuts an output between two characters.
func beginning(output []byte) []byte {
	if len(output) <= maxOutput {
		return output
	}
	cut := maxOutput
	for cut > maxOutput-utf8.UTFMax && !utf8.RuneStart(output[cut]) {
		cut--
	}
	return output[:cut]
}

// sleep takes no time for 0 seconds.
func (r *Runner) sleep(ctx context.Context, action *v1.SleepAction) error {
	timer := time.NewTimer(time.Duration(action.Seconds) * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		r.cutSleeps.Inc()
		return errors.New("container terminated before sleep hook finished")
	}
}

// podText names a pod as the kubelet's messages do.
func podText(p *v1.Pod) string { return p.Name + "_" + p.Namespace + "(" + string(p.UID) + ")" }
