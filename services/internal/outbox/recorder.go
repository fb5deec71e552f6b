package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/signal"
)

const (
	// component is the source of every Event: tools filter on the kubelet's.
	component = "kubelet"
	// spoolSize is how many Events wait while the bus is away.
	spoolSize = 1000

	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

// scheme names the kinds that Events are about.
var scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(s))
	return s
})

// Events records Kubernetes Events about objects. It is the part of client-go's record.EventRecorder that services use
// which do not speak to the API server: client-go's package brings all of its clients along.
type Events interface {
	Event(object runtime.Object, eventtype, reason, message string)
	Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any)
}

// Storer is the part of the bus that a Recorder needs.
type Storer interface {
	Store(ctx context.Context, subj, id string, m proto.Message) error
	WaitConnected(ctx context.Context) error
}

// Recorder records Kubernetes Events and hands them to the bus. Its methods may be called from any
// goroutine and never block.
type Recorder struct {
	bus     Storer
	subject string
	writer  string
	node    string
	log     *slog.Logger
	// traceparent says in which trace an Event about an object is; nil is none.
	traceparent func(uid types.UID) string
	recorded    prometheus.Counter
	dropped     prometheus.Counter

	mu     sync.Mutex
	spool  []entry
	serial uint64
	life   int64 // distinguishes the ids of this life from those of the last
	wake   signal.Signal
}

type entry struct {
	id    string
	event *busv1.KubernetesEvent
	about string // for the log
}

var (
	_ Events = (*Recorder)(nil)
	_ Storer = (*bus.Client)(nil)
)

// NewRecorder returns the recorder of the client's service; Run sends what it records. The Events' host
// is the node's name.
func NewRecorder(c *bus.Client, nodeName string, log *slog.Logger) *Recorder {
	r := RecorderTo(c, c.Role(), c.Writer(), nodeName, log)
	if err := c.Register(r.recorded, r.dropped); err != nil {
		r.log.Error("the outbox's metrics are not served", logkey.Err, err)
	}
	return r
}

// RecorderTo returns the recorder of a service. s stores its Events under the writer's name.
func RecorderTo(s Storer, of role.Role, writer, nodeName string, log *slog.Logger) *Recorder {
	return &Recorder{
		bus: s, subject: subject.Outbox(of), writer: writer, node: nodeName, log: log.With(logkey.Component, "outbox"),
		recorded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_outbox_recorded_events_total", Help: "Kubernetes Events that this service recorded.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_outbox_dropped_events_total",
			Help: "Kubernetes Events that this service dropped because too many waited for the bus, or because they " +
				"were malformed.",
		}),
		life: time.Now().UnixNano(), wake: signal.New(),
	}
}

// InTraces has an Event about an object delivered in the trace that traceparent returns for the object's UID. It is
// called before anything is recorded.
func (r *Recorder) InTraces(traceparent func(uid types.UID) string) { r.traceparent = traceparent }

const (
	// maxMessage bounds an Event's message, in bytes: what a runtime says can be of any length.
	maxMessage = 8 << 10
	// recordOverhead is what the outbox adds to an Event: the envelope, and headers with its id.
	recordOverhead = 1 << 10
)

// Event records an Event about an object, as client-go's record.EventRecorder has it.
func (r *Recorder) Event(object runtime.Object, eventtype, reason, message string) {
	r.record(object, nil, eventtype, reason, message)
}

// Eventf is Event with a format.
func (r *Recorder) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	r.record(object, nil, eventtype, reason, fmt.Sprintf(messageFmt, args...))
}

// AnnotatedEventf is Eventf with annotations on the Event.
func (r *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string,
	eventtype, reason, messageFmt string, args ...any) {
	r.record(object, annotations, eventtype, reason, fmt.Sprintf(messageFmt, args...))
}

func (r *Recorder) record(object runtime.Object, annotations map[string]string, eventtype, reason, message string) {
	r.recorded.Inc()
	ref, err := reference.GetReference(scheme(), object)
	if err != nil {
		r.malformed(fmt.Errorf("what the event is about: %w", err), reason, message)
		return
	}
	if !util.ValidateEventType(eventtype) {
		r.malformed(fmt.Errorf("event type %q: it is Normal or Warning", eventtype), reason, message)
		return
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " … (cut)"
	}
	now := metav1.Now()
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	raw, err := (&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: util.GenerateEventName(ref.Name, now.UnixNano()), Namespace: namespace, Annotations: annotations,
		},
		InvolvedObject: *ref, Type: eventtype, Reason: reason, Message: message,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source:              corev1.EventSource{Component: component, Host: r.node},
		ReportingController: component, ReportingInstance: r.node,
	}).Marshal()
	if err != nil {
		r.malformed(err, reason, message)
		return
	}
	if len(raw) > subject.OutboxMaxEntry-recordOverhead {
		r.malformed(fmt.Errorf("it has %d bytes, more than the outbox takes", len(raw)), reason, message)
		return
	}
	r.log.Debug("event", logkey.Kind, ref.Kind, logkey.Namespace, ref.Namespace, logkey.Name, ref.Name,
		logkey.Field, ref.FieldPath,
		logkey.Type, eventtype, logkey.Reason, reason, logkey.Message, message)

	recorded := &busv1.KubernetesEvent{Event: raw}
	if r.traceparent != nil {
		recorded.Traceparent = r.traceparent(ref.UID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serial++
	if len(r.spool) >= spoolSize {
		r.lose(r.spool[0])
		r.spool = r.spool[1:]
	}
	r.spool = append(r.spool, entry{
		id: fmt.Sprintf("%s.%x.%d", r.writer, r.life, r.serial), event: recorded,
		about: ref.Namespace + "/" + ref.Name + " " + reason,
	})
	r.wake.Set()
}

func (r *Recorder) malformed(err error, reason, message string) {
	r.dropped.Inc()
	r.log.Error("dropped a malformed event", logkey.Reason, reason, logkey.Message, message, logkey.Err, err)
}

func (r *Recorder) lose(e entry) {
	r.dropped.Inc()
	r.log.Warn("dropped an event: too many wait for the bus", "event", e.about)
}

// Waiting is how many Events the bus has not acknowledged.
func (r *Recorder) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.spool)
}

// Run hands the Events to the bus, in their order, until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	failures := 0
	for {
		// Before the head is taken: while the bus is away it may be dropped for younger ones.
		if err := r.bus.WaitConnected(ctx); err != nil {
			r.left()
			return nil
		}
		e, ok := r.head()
		if !ok {
			select {
			case <-ctx.Done():
				r.left()
				return nil
			case <-r.wake:
			}
			continue
		}
		if err := r.bus.Store(ctx, r.subject, e.id, e.event); err != nil {
			if ctx.Err() != nil {
				r.left()
				return nil
			}
			failures++
			r.log.Warn("the bus did not take an event", "event", e.about, logkey.Err, err)
			pause.Longer(ctx, failures, retryMin, retryMax)
			continue
		}
		failures = 0
		r.done(e.id)
	}
}

// left reports what the end of the process takes with it.
func (r *Recorder) left() {
	if n := r.Waiting(); n > 0 {
		r.dropped.Add(float64(n))
		r.log.Warn("the service ends with events that the bus did not take", "events", n)
	}
}

func (r *Recorder) head() (entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.spool) == 0 {
		return entry{}, false
	}
	return r.spool[0], true
}

// done removes an entry that the bus has. It may have been dropped meanwhile.
func (r *Recorder) done(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.spool) > 0 && r.spool[0].id == id {
		r.spool[0] = entry{}
		r.spool = r.spool[1:]
	}
}
