package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// workers have one pod, and take a time to end it.
type workers struct {
	pod      *v1.Pod
	takes    time.Duration
	override status.Override
	grace    int64
	asked    int
}

func (w *workers) Pods() []*v1.Pod          { return []*v1.Pod{w.pod} }
func (w *workers) Known(uid types.UID) bool { return uid == w.pod.UID }

func (w *workers) Evict(ctx context.Context, _ types.UID, override status.Override, grace *int64) error {
	w.asked++
	w.override, w.grace = override, *grace
	select {
	case <-time.After(w.takes):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("its containers still run: %w", ctx.Err())
	}
}

func evictor(w *workers, events record.EventRecorder) *Evictor {
	return New(w, events, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

func newPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hog", UID: "u"}}
}

const message = "The node was low on resource: memory. "

func request() Request {
	return Request{UID: "u", Message: message, Annotations: map[string]string{"starved_resource": "memory"},
		DisruptionTarget: true}
}

func TestAPodEndsAsUnderTheKubeletAndHasOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, events := &workers{pod: newPod(), takes: time.Second}, record.NewFakeRecorder(10)
		e := evictor(w, events)
		for range 2 {
			if err := e.Evict(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
		}
		o := w.override
		if o.Phase != v1.PodFailed || o.Reason != "Evicted" || o.Message != message || !o.Yields || w.grace != 1 ||
			o.Condition == nil || o.Condition.Type != v1.DisruptionTarget || o.Condition.Message != message ||
			o.Condition.Reason != "TerminationByKubelet" || w.asked != 2 {
			t.Errorf("ended %d times with %+v and grace %d", w.asked, o, w.grace)
		}
		if got := <-events.Events; !strings.HasPrefix(got, "Warning Evicted "+message) || len(events.Events) != 0 {
			t.Errorf("event %q and %d more", got, len(events.Events))
		}
	})
}

func TestAPodWithoutTheConditionIsOneOfLocalStorage(t *testing.T) {
	w := &workers{pod: newPod()}
	r := request()
	r.DisruptionTarget, r.GraceSeconds = false, 30
	if err := evictor(w, record.NewFakeRecorder(10)).Evict(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if w.override.Condition != nil || w.grace != 30 {
		t.Errorf("ended with %+v and grace %d", w.override, w.grace)
	}
}

func TestWhoIsNeverEvicted(t *testing.T) {
	critical, static := newPod(), newPod()
	critical.Spec.Priority = new(int32(podutil.SystemCriticalPriority))
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	for _, p := range []*v1.Pod{critical, static} {
		w, events := &workers{pod: p}, record.NewFakeRecorder(10)
		err := evictor(w, events).Evict(t.Context(), request())
		if !errors.Is(err, ErrCritical) || w.asked != 0 || len(events.Events) != 0 {
			t.Errorf("%v: %v, asked %d times, %d events", p.Annotations, err, w.asked, len(events.Events))
		}
	}
	r := request()
	r.UID = "another"
	w := &workers{pod: newPod()}
	if err := evictor(w, nil).Evict(t.Context(), r); !errors.Is(err, pod.ErrUnknown) {
		t.Errorf("an unknown pod: %v", err)
	}
}

func TestAPodThatDoesNotEndIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, events := &workers{pod: newPod(), takes: time.Hour}, record.NewFakeRecorder(10)
		began := time.Now()
		err := evictor(w, events).Evict(t.Context(), request())
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		<-events.Events
		if got := <-events.Events; !strings.HasPrefix(got, "Warning ExceededGracePeriod ") {
			t.Errorf("event %q", got)
		}
	})
}
