package eviction

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// ending answers the request to evict a pod, after a time.
type ending struct {
	takes    time.Duration
	err      error
	override status.Override
	grace    *int64
}

func (w *ending) Evict(ctx context.Context, uid types.UID, override status.Override, grace *int64) error {
	w.override, w.grace = override, grace
	select {
	case <-time.After(w.takes):
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("evict %s: %w", uid, ctx.Err())
	}
}

func victim(grace int64) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "v"}, Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace}}
}

func TestPatienceWithVictims(t *testing.T) {
	for grace, want := range map[int64]time.Duration{0: 10 * time.Second, 4: 10 * time.Second, 30: 45 * time.Second} {
		if got := patience(gracePeriod(victim(grace))); got != want {
			t.Errorf("grace %d: %v, want %v", grace, got, want)
		}
	}
}

func TestAVictimEndsAsUnderTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, events := &ending{takes: time.Second}, record.NewFakeRecorder(10)
		if err := NewPreemptor(w, events).Evict(t.Context(), victim(30)); err != nil {
			t.Fatal(err)
		}
		o := w.override
		if o.Phase != v1.PodFailed || o.Reason != "Preempting" ||
			o.Message != "Preempted in order to admit critical pod" || !o.Yields || w.grace != nil {
			t.Errorf("ended with %+v and grace %v", o, w.grace)
		}
		if c := o.Condition; c == nil || c.Type != v1.DisruptionTarget || c.Reason != v1.PodReasonTerminationByKubelet {
			t.Errorf("condition %+v", c)
		}
		if e := <-events.Events; e != "Warning Preempting Preempted in order to admit critical pod" {
			t.Errorf("event %q", e)
		}
	})
}

func TestAVictimThatIsGoneWasEnded(t *testing.T) {
	w := &ending{err: fmt.Errorf("evict: %w", pod.ErrUnknown)}
	if err := NewPreemptor(w, record.NewFakeRecorder(10)).Evict(t.Context(), victim(30)); err != nil {
		t.Error(err)
	}
}

func TestAVictimThatDoesNotEndIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, events := time.Now(), record.NewFakeRecorder(10)
		err := NewPreemptor(&ending{takes: time.Hour}, events).Evict(t.Context(), victim(30))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 45*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		<-events.Events
		if e := <-events.Events; !strings.HasPrefix(e, "Warning ExceededGracePeriod ") {
			t.Errorf("event %q", e)
		}
	})
}
