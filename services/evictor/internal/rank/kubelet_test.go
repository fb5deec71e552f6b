package rank

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// mix is pods, what they use, and how the kubelet orders them: a line of rankings.json, which
// compose/tools/kubeletfacts/rankings writes.
type mix struct {
	Seed    uint64                        `json:"seed"`
	Pods    []*v1.Pod                     `json:"pods"`
	Figures map[string]*statsapi.PodStats `json:"figures"`
	Orders  []struct {
		Signal           signal.Signal `json:"signal"`
		ImageFs          bool          `json:"imageFs"`
		SplitContainerFs bool          `json:"splitContainerFs"`
		Names            []string      `json:"names"`
	} `json:"orders"`
}

func readMixes(t *testing.T) (mixes []mix) {
	t.Helper()
	text, err := os.ReadFile("testdata/rankings.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	for {
		var m mix
		switch err := decoder.Decode(&m); {
		case errors.Is(err, io.EOF):
			return mixes
		case err != nil:
			t.Fatal(err)
		}
		mixes = append(mixes, m)
	}
}

func TestRandomMixesRankAsByTheKubelet(t *testing.T) {
	mixes := readMixes(t)
	if len(mixes) < 20 {
		t.Errorf("%d mixes, want at least 20", len(mixes))
	}
	compared := 0
	for _, m := range mixes {
		for _, o := range m.Orders {
			pods := slices.Clone(m.Pods)
			By(o.Signal, threshold.Layout{ImageFs: o.ImageFs, SplitContainerFs: o.SplitContainerFs}, pods,
				func(p *v1.Pod) *statsapi.PodStats { return m.Figures[p.Name] })
			var names []string
			for _, p := range pods {
				names = append(names, p.Name)
			}
			if !slices.Equal(names, o.Names) {
				t.Errorf("mix %d, %s, image filesystem %v, split %v:\n%q, the kubelet has\n%q", m.Seed, o.Signal,
					o.ImageFs, o.SplitContainerFs, names, o.Names)
			}
			compared++
		}
	}
	t.Logf("%d orders of %d mixes", compared, len(mixes))
}
