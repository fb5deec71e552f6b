package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/shares"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/credentialplugin"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/pullrecords"
)

// The kubelet's event reasons.
const (
	eventPulling       = "Pulling"
	eventPulled        = "Pulled"
	eventFailed        = "Failed"
	eventInspectFailed = "InspectFailed"
	eventNeverPull     = "ErrImageNeverPull"
	eventBackOff       = "BackOff"
)

// The kubelet's back-off of pulls, which nothing configures.
const (
	backOffFirst = 10 * time.Second
	backOffMax   = 5 * time.Minute
)

// Runtime is what a Puller needs of the container runtime.
type Runtime interface {
	// ImageStatus returns nil for an image that is not there.
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec) (*runtimeapi.Image, error)
	// PullImage returns the reference of the image; auth may be nil.
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
		sandbox *runtimeapi.PodSandboxConfig) (string, error)
	RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error
}

// pullerOptions of a Puller; the fields of KubeletConfiguration are named in parentheses.
type pullerOptions struct {
	// Runtime and Events are required.
	Runtime Runtime
	Events  record.EventRecorder
	// Serial pulls one image at a time (serializeImagePulls).
	Serial bool
	// MaxParallel bounds the pulls at a time when not Serial; nil or 0 is no bound
	// (maxParallelImagePulls).
	MaxParallel *int32
	// QPS and Burst bound how often pulls start; a QPS of 0 is no bound
	// (registryPullQPS, registryBurst).
	QPS   float32
	Burst int
	// RootDir is the kubelet's root folder, where the node's own registry credentials
	// are looked for first. Empty leaves the node's credentials out.
	RootDir string
	// Plugins of the node that have credentials; nil has none.
	Plugins *credentialplugin.Plugins
	// Records of pulls decide whether a pod may use an image that is present; nil lets every pod use it.
	Records *pullrecords.Records
	Log     *slog.Logger
	// Metrics are registered here; nil registers none.
	Metrics prometheus.Registerer
}

// Puller makes images present. It is safe for concurrent use.
type Puller struct {
	opts    pullerOptions
	slots   *shares.Places // nil: no bound
	rate    flowcontrol.RateLimiter
	backOff *flowcontrol.Backoff
	last    lastErrors
	metrics *metrics
}

// newPuller checks the options and returns a Puller.
func newPuller(opts pullerOptions) (*Puller, error) {
	if opts.Runtime == nil || opts.Events == nil {
		return nil, errors.New("the image puller needs a runtime and a recorder of events")
	}
	if opts.QPS < 0 || opts.Burst < 0 || opts.QPS > 0 && opts.Burst == 0 {
		return nil,
			fmt.Errorf("registryPullQPS %v and registryBurst %d: neither may be negative, and a burst of 0 would allow no pull",
				opts.QPS, opts.Burst)
	}
	if opts.MaxParallel != nil && *opts.MaxParallel < 0 {
		return nil, fmt.Errorf("maxParallelImagePulls %d must not be negative", *opts.MaxParallel)
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	p := &Puller{
		opts:    opts,
		rate:    flowcontrol.NewFakeAlwaysRateLimiter(),
		backOff: flowcontrol.NewBackOff(backOffFirst, backOffMax),
	}
	if opts.QPS > 0 {
		p.rate = flowcontrol.NewTokenBucketRateLimiter(opts.QPS, opts.Burst)
	}
	switch {
	case opts.Serial:
		p.slots = shares.New(1)
	case opts.MaxParallel != nil && *opts.MaxParallel > 0:
		p.slots = shares.New(int(*opts.MaxParallel))
	}
	var err error
	p.metrics, err = newMetrics(opts.Metrics)
	return p, err
}

// Request asks for the image of one container, or of one image volume.
type Request struct {
	Pod       *v1.Pod
	Container *v1.Container
	// Volume is asked for if Container is nil. Its events are about the pod, and its caller, which mounts it, reports its
	// error.
	Volume *v1.ImageVolumeSource
	// Sandbox is handed to the runtime with a pull; it may be nil.
	Sandbox *runtimeapi.PodSandboxConfig
	// Handler is the runtime handler that the image is for; empty is the default's.
	Handler string
	// Secrets are the pod's imagePullSecrets.
	Secrets []v1.Secret
}

// Ensure is EnsureRequest for the default runtime handler.
func (p *Puller) Ensure(ctx context.Context, pod *v1.Pod, c *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
	secrets []v1.Secret) (string, error) {
	return p.EnsureRequest(ctx, Request{Pod: pod, Container: c, Sandbox: sandbox, Secrets: secrets})
}

// EnsureVolume is EnsureRequest for an image volume and the default runtime handler.
func (p *Puller) EnsureVolume(ctx context.Context, pod *v1.Pod, v *v1.ImageVolumeSource, secrets []v1.Secret) (string,
	error) {
	return p.EnsureRequest(ctx, Request{Pod: pod, Volume: v, Secrets: secrets})
}

// EnsureRequest returns the reference of the image when it is present, pulling it if it
// must. It blocks as long as the pull, or its place in the queue, takes. Its error is an
// *Error, which an event has reported too, or ctx's, which is no failure of the image.
func (p *Puller) EnsureRequest(ctx context.Context, r Request) (string, error) {
	t := newTask(p, r)
	ref, err := t.run(ctx)
	p.metrics.request(t)
	if ctxErr := ctx.Err(); err != nil && ctxErr != nil {
		return "", fmt.Errorf("image %q: %w", t.image, ctxErr)
	}
	var shown *Error
	if errors.As(err, &shown) && r.Container != nil {
		t.event(v1.EventTypeWarning, eventFailed, "Error: "+shown.Reason)
	}
	return ref, err
}

// task is one request on its way.
type task struct {
	p   *Puller
	req Request
	// about is what events are about, a pod or a reference to a container of it.
	about     runtime.Object
	image     string
	container string // empty for a volume
	name      name
	spec      *runtimeapi.ImageSpec
	// credentials are looked for once.
	credentials *credentials
	// policy, and what came out, for the metrics; nil is not known.
	policy            v1.PullPolicy
	present, required *bool
}

func newTask(p *Puller, r Request) *task {
	if r.Container == nil {
		return &task{p: p, req: r, about: r.Pod, image: r.Volume.Reference, policy: r.Volume.PullPolicy}
	}
	return &task{
		p: p, req: r, about: eventref.Container(r.Pod, r.Container.Name), image: r.Container.Image,
		container: r.Container.Name, policy: r.Container.ImagePullPolicy,
	}
}

func (t *task) event(kind, reason, message string) {
	t.p.opts.Events.Event(t.about, kind, reason, message)
}

func (t *task) run(ctx context.Context) (string, error) {
	image := t.image
	var err error
	if t.name, err = parseName(image); err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", image, err)
		t.event(v1.EventTypeWarning, eventInspectFailed, message)
		return "", &Error{ReasonInvalidName, message}
	}
	if t.policy == "" {
		t.policy = t.name.policy
	}
	t.spec = &runtimeapi.ImageSpec{
		Image:          t.name.pull,
		Annotations:    t.req.Pod.Annotations,
		RuntimeHandler: t.req.Handler,
	}
	if t.policy != v1.PullAlways {
		ref, err := t.look(ctx)
		if ref != "" || err != nil {
			return ref, err
		}
	}
	if t.policy == v1.PullNever {
		if t.credentials != nil && t.credentials.err != nil {
			return "", &Error{ReasonPull, t.credentials.err.Error()}
		}
		// Nor does it learn that the image is there and the pod may not use it.
		message := fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
		t.event(v1.EventTypeWarning, eventNeverPull, message)
		return "", &Error{ReasonNeverPull, message}
	}
	t.required = new(true)
	return t.pull(ctx)
}

// look returns the reference of the image if it is present and the pod may use it.
func (t *task) look(ctx context.Context) (string, error) {
	image := t.image
	found, err := t.p.opts.Runtime.ImageStatus(ctx, t.spec)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		message := fmt.Sprintf("Failed to inspect image %q: %v", image, err)
		t.event(v1.EventTypeWarning, eventInspectFailed, message)
		return "", &Error{ReasonInspect, message}
	}
	t.present = new(found != nil)
	if found == nil {
		return "", nil
	}
	message := fmt.Sprintf("Container image %q already present on machine", image)
	if records := t.p.opts.Records; records != nil {
		auths := func() ([]keyring.Auth, error) { return t.auths(ctx) }
		// Credentials that cannot be read are reported by the pull, which has its back-off.
		if must, _ := records.MustPull(image, found.GetId(), auths); must {
			return "", ctx.Err()
		}
		message += " and can be accessed by the pod"
	}
	t.required = new(false)
	t.event(v1.EventTypeNormal, eventPulled, message)
	return found.GetId(), nil
}

// pull pulls unless the image is in back-off.
func (t *task) pull(ctx context.Context) (string, error) {
	p, image := t.p, t.image
	key := backOffKey(t.req.Pod.UID, image)
	if p.backOff.IsInBackOffSinceUpdate(key, p.backOff.Clock.Now()) {
		message := fmt.Sprintf("Back-off pulling image %q", image)
		t.event(v1.EventTypeNormal, eventBackOff, message)
		if last, ok := p.last.at(key); ok {
			message += ": " + last.text
		}
		return "", &Error{ReasonBackOff, message}
	}
	p.last.forget(key)

	auths, err := t.auths(ctx)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", t.failed(key, err)
	}
	t.event(v1.EventTypeNormal, eventPulling, fmt.Sprintf("Pulling image %q", image))
	asked := time.Now()
	leave, waited, err := p.enter(ctx, t.req.Pod.Namespace)
	if err != nil {
		return "", err
	}
	defer leave()
	if waited && t.policy == v1.PullIfNotPresent {
		// The pull before may have been of the same image.
		if ref, err := t.look(ctx); ref != "" || err != nil {
			return ref, err
		}
		t.required = new(true)
	}
	begun := time.Now()
	got, err := t.recorded(ctx, auths)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", t.failed(key, err)
	}
	took, total := time.Since(begun).Truncate(time.Millisecond), time.Since(asked).Truncate(time.Millisecond)
	t.event(v1.EventTypeNormal, eventPulled,
		fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.", image, took,
			total, got.size))
	p.metrics.pulled(got.size, total)
	p.backOff.GC()
	return got.ref, nil
}

// BackOff returns when the next pull of an image for a pod may begin, and why the last one failed. It is false if
// nothing holds the pull.
func (p *Puller) BackOff(uid types.UID, image string) (until time.Time, lastError string, ok bool) {
	key := backOffKey(uid, image)
	failed, known := p.last.at(key)
	if !known {
		return time.Time{}, "", false
	}
	until = failed.at.Add(p.backOff.Get(key))
	return until, failed.text, p.backOff.Clock.Now().Before(until)
}

func backOffKey(uid types.UID, image string) string { return fmt.Sprintf("%s_%s", uid, image) }

// slotTime is how long a pull keeps others waiting. A registry may send its image as slowly as it likes.
const slotTime = 2 * time.Minute

// enter waits for a slot among the pulls, which namespaces share. waited says that it was not free at once.
func (p *Puller) enter(ctx context.Context, namespace string) (leave func(), waited bool, err error) {
	if p.slots == nil {
		return func() {}, false, nil
	}
	release, free := p.slots.TryTake(namespace)
	if !free {
		p.metrics.waiting.Inc()
		defer p.metrics.waiting.Dec()
		if release, err = p.slots.Take(ctx, namespace); err != nil {
			return nil, true, err
		}
	}
	timer := time.AfterFunc(slotTime, release)
	return func() { timer.Stop(); release() }, !free, nil
}

// failed reports a pull that failed, and makes the next one wait.
func (t *task) failed(key string, err error) *Error {
	image := t.image
	t.event(v1.EventTypeWarning, eventFailed, fmt.Sprintf("Failed to pull image %q: %v", image, err))
	t.p.backOff.Next(key, t.p.backOff.Clock.Now())
	shown := pullError(image, err)
	t.p.last.set(key, shown.Error())
	t.p.opts.Log.Warn("image pull failed", logkey.Pod, t.req.Pod.Namespace+"/"+t.req.Pod.Name,
		logkey.Container, t.container, "image", image, logkey.Err, err)
	return shown
}
