package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/pause"
)

// maxPending and ackWait are the outbox consumer's.
const (
	maxPending = 256
	ackWait    = 10 * time.Second
)

// stream is the bus's outbox: it gives out what waits in its order, no more than maxPending at a time, and what is
// neither acknowledged nor kept again.
type stream struct {
	mu      sync.Mutex
	waiting []*stored
	pending []*stored
	acked   int
	deaf    bool // acknowledgements are lost
}

type stored struct {
	data []byte
	due  time.Time // given out again then
}

func (s *stream) WaitConnected(ctx context.Context) error { return ctx.Err() }

func (s *stream) Take(ctx context.Context) (message, error) {
	for range 50 {
		if m, ok := s.next(); ok {
			return m, nil
		}
		if pause.For(ctx, 100*time.Millisecond) != nil {
			return message{}, ctx.Err()
		}
	}
	return message{}, bus.ErrNoRecord
}

func (s *stream) next() (message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, r := range s.pending {
		if !now.Before(r.due) {
			return s.give(r), true
		}
	}
	if len(s.waiting) == 0 || len(s.pending) >= maxPending {
		return message{}, false
	}
	r := s.waiting[0]
	s.waiting, s.pending = s.waiting[1:], append(s.pending, r)
	return s.give(r), true
}

func (s *stream) give(r *stored) message {
	r.due = time.Now().Add(ackWait)
	return message{
		data: r.data,
		done: func(ctx context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.deaf || ctx.Err() != nil {
				return errors.New("acknowledgement lost")
			}
			if i := slices.Index(s.pending, r); i >= 0 {
				s.pending = slices.Delete(s.pending, i, i+1)
				s.acked++
			}
			return nil
		},
		keep: func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			r.due = time.Now().Add(ackWait)
			return nil
		},
	}
}

// record puts an Event into the outbox.
func (s *stream) record(t *testing.T, pod, reason, text string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	serial := s.acked + len(s.pending) + len(s.waiting)
	raw, err := (&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s.%x", pod, serial)},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod},
		Reason:         reason, Message: text, Type: corev1.EventTypeNormal, Count: 1,
	}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(&busv1.KubernetesEvent{Event: raw})
	if err != nil {
		t.Fatal(err)
	}
	s.waiting = append(s.waiting, &stored{data: data})
}

func (s *stream) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) + len(s.pending)
}

// apiserver keeps Events, and does to each call what fault says.
type apiserver struct {
	mu     sync.Mutex
	fault  func(e *corev1.Event) error // called without the lock; it may wait
	events map[string]*corev1.Event
	log    []string // pods, reasons and messages in the order of their creation
	when   map[string]time.Time
	calls  int
	busy   int
	atOnce int
}

func newAPIServer(fault func(e *corev1.Event) error) *apiserver {
	return &apiserver{fault: fault, events: map[string]*corev1.Event{}, when: map[string]time.Time{}}
}

func (a *apiserver) call(e *corev1.Event) error {
	a.mu.Lock()
	a.calls++
	a.busy++
	a.atOnce = max(a.atOnce, a.busy)
	fault := a.fault
	a.mu.Unlock()
	var err error
	if fault != nil {
		err = fault(e)
	}
	a.mu.Lock()
	a.busy--
	return err // with the lock
}

func (a *apiserver) Create(_ context.Context, e *corev1.Event) (*corev1.Event, error) {
	err := a.call(e)
	defer a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if a.events[e.Name] != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
	}
	a.events[e.Name] = e.DeepCopy()
	text := e.InvolvedObject.Name + " " + e.Reason + " " + e.Message
	a.log = append(a.log, text)
	a.when[text] = time.Now()
	return e, nil
}

func (a *apiserver) Patch(_ context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	err := a.call(e)
	defer a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if a.events[e.Name] == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, e.Name)
	}
	a.events[e.Name] = e.DeepCopy()
	return e, nil
}

func (a *apiserver) set(fault func(e *corev1.Event) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = fault
}

func (a *apiserver) created() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.log)
}

// of are the messages of one pod's Events in the order of their creation.
func (a *apiserver) of(pod string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	for _, text := range a.log {
		var name, reason, message string
		if _, err := fmt.Sscan(text, &name, &reason, &message); err == nil && name == pod {
			list = append(list, message)
		}
	}
	return list
}

// deliver runs a delivery with the kubelet's budget until the returned function is called.
func deliver(t *testing.T, from *stream, to *apiserver, change ...func(*Options)) (stop func()) {
	t.Helper()
	o := Options{QPS: 50, Burst: 100, Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&o)
	}
	d, err := newDelivery(from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// leaseRenewed is an apiserver that answers the renewal of a Lease, every 10 s.
func leaseRenewed(o *Options) {
	first := time.Now()
	o.Answered = func() time.Time { return first.Add(time.Since(first).Truncate(10 * time.Second)) }
}

var (
	errWebhook = apierrors.NewInternalError(errors.New(`failed calling webhook "events.example.com"`))
	errAway    = errors.New("dial tcp: connection refused")
)

// wait lets virtual time pass.
func wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

// A webhook that fails for some Events holds up no other: neither those of other pods, nor those of the same one.
func TestAFailingWebhookHoldsUpNoOtherEvent(t *testing.T) {
	for name, answer := range map[string]func() error{
		"refuses": func() error { return errWebhook },
		"hangs":   func() error { time.Sleep(callTimeout); return context.DeadlineExceeded },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := &stream{}
				to := newAPIServer(func(e *corev1.Event) error {
					if e.Reason == "Bad" {
						return answer()
					}
					return nil
				})
				for i := range 100 {
					from.record(t, fmt.Sprint("bad-", i), "Bad", "m")
				}
				for i := range 8 {
					from.record(t, "mixed", "Bad", fmt.Sprint(i))
					from.record(t, "mixed", "Good", fmt.Sprint(i))
					from.record(t, fmt.Sprint("good-", i), "Good", "m")
				}
				stop := deliver(t, from, to, leaseRenewed)
				defer stop()
				wait(10 * time.Second)
				for i := range 8 {
					if got := to.of(fmt.Sprint("good-", i)); len(got) != 1 {
						t.Errorf("good-%d has %q, want its event", i, got)
					}
				}
				if name == "hangs" {
					wait(3 * time.Minute) // each that hangs takes its time before the next about the same pod
				}
				if got, want := to.of("mixed"), []string{"0", "1", "2", "3", "4", "5", "6", "7"}; !slices.Equal(got,
					want) {
					t.Errorf("mixed has %q, want %q", got, want)
				}
				to.set(nil)
				wait(time.Minute)
				if n := len(to.created()); n != 124 {
					t.Errorf("%d events once the webhook works, want 124", n)
				}
				if n := from.left(); n != 0 {
					t.Errorf("%d are not acknowledged", n)
				}
			})
		})
	}
}

// More Events than may wait aside are refused: the oldest are given up, and the others come through. What is refused
// for ever is given up too.
func TestRefusedEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &stream{}
		to := newAPIServer(func(e *corev1.Event) error {
			if e.Reason == "Bad" {
				return errWebhook
			}
			return nil
		})
		for i := range 1000 {
			from.record(t, fmt.Sprint("bad-", i), "Bad", "m")
			if i%100 == 99 {
				from.record(t, fmt.Sprint("good-", i), "Good", "m")
			}
		}
		stop := deliver(t, from, to)
		defer stop()
		wait(2 * time.Minute)
		if n := len(to.created()); n != 10 {
			t.Errorf("%d events came through, want 10", n)
		}
		if n := from.left(); n != maxRefused {
			t.Errorf("%d wait, want the %d youngest", n, maxRefused)
		}
		wait(giveUpAfter + retryRefusedMax)
		if n := from.left(); n != 0 {
			t.Errorf("%d are kept for ever", n)
		}
	})
}

// An apiserver that hangs over Events, and answers other requests, is not away: not even if all Events are such.
func TestAWebhookThatHangsOverEverythingFillsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &stream{}
		to := newAPIServer(func(e *corev1.Event) error {
			if e.Reason == "Bad" {
				time.Sleep(callTimeout)
				return context.DeadlineExceeded
			}
			return nil
		})
		for i := range 600 {
			from.record(t, fmt.Sprint("bad-", i), "Bad", "m")
		}
		from.record(t, "good", "Good", "m")
		stop := deliver(t, from, to, leaseRenewed)
		defer stop()
		wait(5 * time.Minute)
		if got := to.of("good"); len(got) != 1 {
			t.Errorf("good has %q, want its event", got)
		}
	})
}

// A batch of pods does not wait for one Event after the other, an object's Events keep their order, and the apiserver
// is not flooded.
func TestABatchOfPodsIsDeliveredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &stream{}
		to := newAPIServer(func(*corev1.Event) error { time.Sleep(200 * time.Millisecond); return nil })
		want := []string{"0", "1", "2", "3", "4", "5"}
		for _, m := range want {
			for pod := range 50 {
				from.record(t, fmt.Sprint("pod-", pod), "Started", m)
			}
		}
		began := time.Now()
		stop := deliver(t, from, to)
		defer stop()
		wait(time.Minute)
		for pod := range 50 {
			if got := to.of(fmt.Sprint("pod-", pod)); !slices.Equal(got, want) {
				t.Errorf("pod-%d has %q, want %q", pod, got, want)
			}
		}
		for text, when := range to.when {
			if late := when.Sub(began); late > 10*time.Second {
				t.Errorf("%q came after %v", text, late)
			}
		}
		if to.atOnce > maxCalls {
			t.Errorf("%d calls at one time, want no more than %d", to.atOnce, maxCalls)
		}
	})
}

// An outage of hours loses nothing, changes no order, and costs few calls.
func TestAnOutageLosesNoEvent(t *testing.T) {
	for name, away := range map[string]error{
		"no answer":                errAway,
		"credentials have expired": apierrors.NewUnauthorized("expired"),
		"overloaded":               apierrors.NewTooManyRequests("later", 1),
		"not ready":                apierrors.NewServiceUnavailable("not ready"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := &stream{}
				to := newAPIServer(func(*corev1.Event) error { return away })
				for m := range 9 {
					for pod := range 60 {
						from.record(t, fmt.Sprint("pod-", pod), "Started", fmt.Sprint(m))
					}
				}
				stop := deliver(t, from, to)
				defer stop()
				wait(2 * time.Hour)
				if most := 2*3600/int(deliverMax/time.Second) + 2*maxPending; to.calls > most {
					t.Errorf("%d calls while the apiserver was away, want no more than %d", to.calls, most)
				}
				to.set(nil)
				wait(time.Minute)
				for pod := range 60 {
					if got, want := to.of(fmt.Sprint("pod-", pod)),
						[]string{"0", "1", "2", "3", "4", "5", "6", "7", "8"}; !slices.Equal(got, want) {
						t.Errorf("pod-%d has %q, want %q", pod, got, want)
					}
				}
				if n := from.left(); n != 0 {
					t.Errorf("%d are not acknowledged", n)
				}
			})
		})
	}
}

// The same Event again raises the count of the first, also while that one waits aside.
func TestTheCountOfARefusedEventGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := &stream{}, newAPIServer(nil)
		stop := deliver(t, from, to)
		defer stop()
		count := func(want int32) {
			t.Helper()
			to.mu.Lock()
			defer to.mu.Unlock()
			if len(to.events) != 1 {
				t.Fatalf("%d events, want 1", len(to.events))
			}
			for _, e := range to.events {
				if e.Count != want {
					t.Errorf("count is %d, want %d", e.Count, want)
				}
			}
		}
		from.record(t, "pod", "BackOff", "m")
		wait(time.Second)
		to.set(func(*corev1.Event) error { return errWebhook })
		for range 3 {
			from.record(t, "pod", "BackOff", "m")
			wait(3 * time.Second)
		}
		count(1)
		to.set(nil)
		wait(retryRefusedMax)
		count(4)
		from.record(t, "pod", "BackOff", "m")
		wait(time.Second)
		count(5)
		if n := from.left(); n != 0 {
			t.Errorf("%d are not acknowledged", n)
		}
	})
}

// The spam filter and the aggregation are the kubelet's.
func TestManyEventsAboutOnePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := &stream{}, newAPIServer(nil)
		for i := range 40 {
			from.record(t, "noisy", "Unhealthy", fmt.Sprint(i))
			from.record(t, "quiet", "Started", "m")
		}
		stop := deliver(t, from, to)
		defer stop()
		wait(10 * time.Second)
		// Nine alone, the others of 25 together.
		if n := len(to.of("noisy")); n != 10 {
			t.Errorf("%d events, want 10", n)
		}
		to.mu.Lock()
		defer to.mu.Unlock()
		for _, e := range to.events {
			if e.InvolvedObject.Name == "quiet" && e.Count != 25 {
				t.Errorf("count is %d, want 25, the spam filter's burst", e.Count)
			}
		}
		if n := len(from.pending) + len(from.waiting); n != 0 {
			t.Errorf("%d are not acknowledged", n)
		}
	})
}

// TestWhatManyEventsTake: a service can record Events as large and as different as it likes. Those that the spam filter
// keeps back are remembered too.
func TestWhatManyEventsTake(t *testing.T) {
	d, err := newDelivery(&stream{}, newAPIServer(nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	long := strings.Repeat("x", subject.OutboxMaxEntry-1000)
	for i := range 45_000 {
		if _, err := d.correlator.EventCorrelate(&corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "noisy"}, Type: corev1.EventTypeNormal,
			Reason: strconv.Itoa(i / 10), Message: strconv.Itoa(i) + long,
			FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if took := heap() - before; took > 256<<20 {
		t.Errorf("they take %d MiB", took>>20)
	}
	runtime.KeepAlive(d)
}

// What was not acknowledged comes again: to the same process, which knows it, and to the next one after a death.
func TestEventsThatComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := &stream{deaf: true}, newAPIServer(nil)
		stop := deliver(t, from, to)
		for pod := range 20 {
			from.record(t, fmt.Sprint("pod-", pod), "Started", "m")
		}
		wait(3 * ackWait)
		if to.calls != 20 {
			t.Errorf("%d calls, want one an event", to.calls)
		}
		from.mu.Lock()
		from.deaf = false
		from.mu.Unlock()
		wait(2 * ackWait)
		if n := from.left(); n != 0 {
			t.Errorf("%d are not acknowledged", n)
		}
		to.set(func(*corev1.Event) error { return errAway })
		for pod := range 20 {
			from.record(t, fmt.Sprint("later-", pod), "Started", "m")
		}
		wait(5 * ackWait)
		stop()
		if n := from.left(); n != 20 {
			t.Errorf("%d are left to the next process, want 20", n)
		}
		to.set(nil)
		stop = deliver(t, from, to)
		defer stop()
		wait(2 * ackWait)
		if n := len(to.created()); n != 40 || from.left() != 0 {
			t.Errorf("%d events, %d left, want 40 and 0", n, from.left())
		}
	})
}
