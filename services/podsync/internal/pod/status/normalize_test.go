package status

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestNormalizeCutsOurConditions to what the API server takes, and leaves those of others alone.
func TestNormalizeCutsOurConditions(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	s := v1.PodStatus{Conditions: []v1.PodCondition{
		{Type: v1.PodResizeInProgress, Message: "x" + long}, {Type: "example.com/gate", Message: long},
	}}
	Normalize(&v1.Pod{}, &s)
	if got := s.Conditions[0].Message; len(got) != maxCondition-1 || !strings.HasPrefix("x"+long, got) {
		t.Errorf("ours has %d bytes", len(got))
	}
	if got := s.Conditions[1].Message; got != long {
		t.Errorf("that of others has %d bytes", len(got))
	}
}
