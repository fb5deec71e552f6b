package podsync

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestPatienceWithVictims(t *testing.T) {
	for grace, want := range map[int64]time.Duration{0: 10 * time.Second, 4: 10 * time.Second, 30: 45 * time.Second} {
		if got := patience(&v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: &grace}}); got != want {
			t.Errorf("grace %d: %v, want %v", grace, got, want)
		}
	}
}
