package pods

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// TestRandomPodsAreValid has the API server judge random pods, without keeping them.
func TestRandomPodsAreValid(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	g := s.RandomPods(podgen.Options{Seed: scene.Seed(t, uint64(time.Now().UnixNano())), Node: s.NodeName()})
	for i := range randomPods {
		p, traits := g.Pod(fmt.Sprintf("judged-%d", i))
		_, err := s.API.CoreV1().Pods(s.Namespace).Create(t.Context(), p,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Errorf("pod %d, of the traits %s: %v", i, strings.Join(traits, ", "), err)
		}
	}
}
