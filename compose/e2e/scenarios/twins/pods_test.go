//go:build long

package twins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/podgen"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/internal/twin"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

const (
	twinPods = 100
	// twinWave is how many of them are there at once.
	twinWave = 20
	// deliveryPause is how long no Event arrives when all are delivered.
	deliveryPause = 15 * time.Second
)

// TestTwins runs random pods under the kubelet and then under microlet, on the same node, and compares what became of
// them: status, Events, and what the runtime was given, to the last field. Those with resources are resized in between.
func TestTwins(t *testing.T) {
	scene.Shared.SwitchTo(t, rig.AgentKubelet)
	s := scene.New(t)
	opts := podgen.Options{Seed: scene.Seed(t, uint64(time.Now().UnixNano())), Node: s.NodeName()}
	g := s.RandomPods(opts)
	var pods []*corev1.Pod
	traits := map[string][]string{}
	for i := range twinPods {
		p, names := g.Pod(fmt.Sprintf("twin-%d", i))
		pods, traits[p.Name] = append(pods, p), names
	}
	fields := podgen.Fields(pods...)
	t.Logf("%d pods set %d fields:\n%s", len(pods), len(fields), strings.Join(fields, "\n"))

	for i := range twin.Explained {
		t.Logf("meant: %s", &twin.Explained[i])
	}

	theirs := facts(s, pods)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet)
	ours := facts(s, pods)

	type group struct {
		count   int
		example string
	}
	groups := map[string]*group{}
	compared, same := 0, 0
	for _, p := range pods {
		compared += len(theirs[p.Name])
		differences := twin.Unexplained(twin.Compare(theirs[p.Name], ours[p.Name]))
		if len(differences) == 0 {
			same++
		}
		for _, d := range differences {
			if groups[d.Path] == nil {
				groups[d.Path] = &group{
					example: fmt.Sprintf("%s (%s)\n\tkubelet  %q\n\tmicrolet %q", p.Name,
						strings.Join(traits[p.Name], ", "), d.A, d.B),
				}
			}
			groups[d.Path].count++
		}
	}
	t.Logf("%d pods, %d facts compared: %d pods are the same, %d kinds of difference", len(pods), compared, same,
		len(groups))
	for _, path := range slices.Sorted(maps.Keys(groups)) {
		t.Errorf("%s differs in %d pods, as in %s", path, groups[path].count, groups[path].example)
	}
}

// facts runs pods in waves under the present agent, and reads what became of them.
func facts(s *scene.Scene, pods []*corev1.Pod) map[string]twin.Facts {
	s.T.Helper()
	all := map[string]twin.Facts{}
	for wave := range slices.Chunk(pods, twinWave) {
		var names []string
		var copies []*corev1.Pod
		for _, p := range wave {
			names, copies = append(names, p.Name), append(copies, p.DeepCopy())
		}
		s.CreatePods(copies...)
		if err := allAtRest(s, scene.Patience, names...); err != nil {
			s.T.Errorf("under %s: %v", s.Agent(), err)
		}
		grow(s, names)
		// Events follow, and microlet delivers no more of them a second than a kubelet
		quiet(s, deliveryPause, scene.Patience)
		v := s.Record.View()
		for _, name := range names {
			err := s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
				ctx, cancel := context.WithTimeout(s.T.Context(), 30*time.Second)
				defer cancel()
				var err error
				all[name], err = twin.Read(ctx, s.API, c, v.Pod(s.Namespace, name))
				return err
			})
			if err != nil {
				s.T.Fatal(err)
			}
		}
		s.DeletePods(names...)
		s.Wait(scene.Patience, "the end of a wave", s.AreGone(names...))
	}
	return all
}

// grow resizes those of the pods that run for ever and have resources, and waits until they have more.
func grow(s *scene.Scene, names []string) {
	s.T.Helper()
	var grown []string
	for _, name := range names {
		p := s.Record.View().Pod(s.Namespace, name)
		if !podgen.Ends(p) && podgen.Grow(p.Spec.DeepCopy()) {
			s.Resize(name, func(spec *corev1.PodSpec) { podgen.Grow(spec) })
			grown = append(grown, name)
		}
	}
	if err := errors.Join(s.WaitErr(scene.Patience, s.AreResized(grown...)),
		allAtRest(s, scene.Patience, grown...)); err != nil {
		s.T.Errorf("under %s: %v", s.Agent(), err)
	}
}

// quiet returns when the record has had nothing new of the namespace for a while, or at the limit.
func quiet(s *scene.Scene, pause, limit time.Duration) {
	s.T.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		s.SyncRecord()
		mark := s.Record.Mark()
		time.Sleep(pause)
		s.SyncRecord()
		if !slices.ContainsFunc(s.Record.Since(mark), func(e record.Entry) bool {
			o, ok := e.Object.(metav1.Object)
			return ok && o.GetNamespace() == s.Namespace
		}) {
			return
		}
	}
}

// allAtRest waits for random pods by name, and returns which of them did not come to rest.
func allAtRest(s *scene.Scene, limit time.Duration, names ...string) error {
	s.T.Helper()
	return s.WaitErr(limit, func(v record.View) error {
		for _, name := range names {
			if p := v.Pod(s.Namespace, name); !scene.AtRest(p) {
				return fmt.Errorf("pod %s: %s", name, scene.Describe(p))
			}
		}
		return nil
	})
}
