//go:build long

package outages

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

const (
	// besideRegistry is how many pods live beside one that waits for its image. Each asks for two probes a second.
	besideRegistry = 30
	// probeWindow is for how long their probes are counted.
	probeWindow = 10 * time.Second
	// layerSize is that of an image's layer, and firstBytes is what comes of it before it stalls.
	layerSize, firstBytes = 4 << 20, 64 << 10
)

// TestHungRegistry: a registry takes requests and does not answer, or stops in the middle of a layer. The pod that
// waits for this image says so. Others, whose images are present, start, are probed and end meanwhile. A deleted pod
// goes without its image, and one that stays runs when the registry goes on.
func TestHungRegistry(t *testing.T) {
	for _, how := range []struct {
		name  string
		hangs func(*hungRegistry, http.ResponseWriter, *http.Request, http.Handler)
	}{
		{"silent", (*hungRegistry).silent},
		{"stalls", (*hungRegistry).stalls},
	} {
		t.Run(how.name, func(t *testing.T) {
			scene.Shared.UseMicrolet(t)
			besideHungRegistry(scene.New(t), how.name, how.hangs)
		})
	}
}

func besideHungRegistry(s *scene.Scene, name string,
	hangs func(*hungRegistry, http.ResponseWriter, *http.Request, http.Handler)) {
	s.T.Helper()
	r := &hungRegistry{released: make(chan struct{})}
	host := s.RunRegistry(func(w http.ResponseWriter, q *http.Request, inner http.Handler) { hangs(r, w, q, inner) })
	s.T.Cleanup(r.release) // before the server, which waits for its requests
	image := s.PushImage(host, name, layerSize)
	r.pushed.Store(true)
	probedSample(s, "first") // what is slow only once is not measured
	var without, beside []scene.Sample
	for i := range scene.Samples {
		hung := fmt.Sprintf("hung-%d", i)
		without = append(without, probedSample(s, "without"))
		p := scene.PausePod(hung)
		p.Spec.Containers[0].Image = image
		s.CreatePods(p)
		scene.Await(s.T, scene.Patience, "a request that hangs", func() error {
			if r.waiting.Load() == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		saysThatItPulls(s, hung, image)
		isExplained(s, hung, image, "Pulling")
		beside = append(beside, probedSample(s, "beside"))
		isExplained(s, hung, image, "Pulling", "ErrImagePull", "ImagePullBackOff")
		if i < scene.Samples-1 {
			s.DeletePods(hung)
			s.Wait(scene.Patience, "the end of the pod whose image hangs", s.AreGone(hung))
			continue
		}
		r.release()
		s.WaitReady(2*scene.Patience, hung) // it may be in back-off
		p = s.Record.View().Pod(s.Namespace, hung)
		s.DeletePods(hung)
		s.Wait(scene.Patience, "the end of the pod", s.AreGone(hung))
		s.LeavesNothing([]*corev1.Pod{p})
	}
	s.LogSamples(fmt.Sprintf("%d probed pods, registry %s", besideRegistry, name), without, beside)
}

// hungRegistry answers pushes. What is pulled hangs until it is released.
type hungRegistry struct {
	pushed   atomic.Bool
	waiting  atomic.Int32
	once     sync.Once
	released chan struct{}
}

func (r *hungRegistry) release() { r.once.Do(func() { close(r.released) }) }

// wait returns when the registry is released, or the caller no longer waits.
func (r *hungRegistry) wait(ctx context.Context) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	select {
	case <-r.released:
	case <-ctx.Done():
	}
}

// silent has requests hang before their answers begin.
func (r *hungRegistry) silent(w http.ResponseWriter, q *http.Request, inner http.Handler) {
	if r.pushed.Load() {
		r.wait(q.Context())
	}
	inner.ServeHTTP(w, q)
}

// stalls has large answers stop in their middle. The runtime continues where an earlier pull has ended, and the answer
// stops again.
func (r *hungRegistry) stalls(w http.ResponseWriter, q *http.Request, inner http.Handler) {
	if r.pushed.Load() && strings.Contains(q.URL.Path, "/blobs/") {
		w = &stalling{ResponseWriter: w, registry: r, ctx: q.Context(), left: firstBytes}
	}
	inner.ServeHTTP(w, q)
}

// stalling is an answer that stops after some bytes.
type stalling struct {
	http.ResponseWriter
	registry *hungRegistry
	ctx      context.Context
	left     int
}

func (a *stalling) Write(data []byte) (int, error) {
	if len(data) <= a.left {
		a.left -= len(data)
		return a.ResponseWriter.Write(data)
	}
	n, err := a.ResponseWriter.Write(data[:a.left])
	a.left = 0
	if err != nil {
		return n, err
	}
	a.ResponseWriter.(http.Flusher).Flush()
	a.registry.wait(a.ctx)
	more, err := a.ResponseWriter.Write(data[n:])
	return n + more, err
}

// probedSample has probed pods live for a while.
func probedSample(s *scene.Scene, name string) scene.Sample {
	s.T.Helper()
	var pods []*corev1.Pod
	for i := range besideRegistry {
		pods = append(pods, scene.OnNode(scene.ProbedPod(fmt.Sprintf("%s-%d", name, i), scene.HTTPProbe), s.NodeName()))
	}
	rate := 0.0
	is := s.Sample(pods, func() {
		began, before := time.Now(), s.ProbeTotal(s.T, s.Namespace)
		time.Sleep(probeWindow)
		rate = (s.ProbeTotal(s.T, s.Namespace) - before) / time.Since(began).Seconds()
	})
	is.Probes = rate
	return is
}

// saysThatItPulls judges that an Event of the pod says which image is pulled for it.
func saysThatItPulls(s *scene.Scene, pod, image string) {
	s.T.Helper()
	want := fmt.Sprintf("Pulling image %q", image)
	s.Wait(scene.Patience, "the Event of the pull", func(v record.View) error {
		var seen []string
		for _, e := range v.Events(s.Namespace, pod) {
			if e.Reason == "Pulling" && e.Message == want {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("not %q, only the Events %q", want, seen)
	})
}

// isExplained judges that "microlet explain" gives the image as the cause why the pod waits, and logs how. The runtime
// waits for the first byte of an answer for half a minute, so the pull may have failed meanwhile.
func isExplained(s *scene.Scene, pod, image string, reasons ...string) {
	s.T.Helper()
	x, err := s.Explain(pod)
	if err != nil {
		s.T.Fatal(err)
	}
	for _, c := range x.Causes {
		if c.Part == "containers/main" && slices.Contains(reasons, c.Reason) && strings.Contains(c.Message, image) {
			s.T.Logf("%s: %s: %s", pod, c.Reason, c.Message)
			return
		}
	}
	s.T.Errorf("pod %s is explained as %+v, want one of %q with %s", pod, x, reasons, image)
}
