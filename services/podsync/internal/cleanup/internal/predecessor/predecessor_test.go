package predecessor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// fakeRuntime has pods, and writes down what is done to them.
type fakeRuntime struct {
	pods map[types.UID]*pod.State
	err  error // of StopContainer

	mu   sync.Mutex
	done []string
}

func (r *fakeRuntime) did(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, fmt.Sprintf(format, a...))
}

func (r *fakeRuntime) List(context.Context) (map[types.UID]*pod.State, error) { return r.pods, nil }

func (r *fakeRuntime) StopContainer(_ context.Context, id string, grace time.Duration) error {
	r.did("stop %s in %v", id, grace)
	return r.err
}

func (r *fakeRuntime) StopSandbox(_ context.Context, id string) error {
	r.did("stop sandbox %s", id)
	return nil
}

// staticState is what the runtime has of a static pod with a container that runs.
func staticState(uid types.UID, name, grace string) *pod.State {
	return &pod.State{
		UID: uid, Namespace: "ns", Name: name,
		Sandboxes: []pod.Sandbox{{
			ID:          "s-" + string(uid),
			Annotations: map[string]string{podutil.ConfigSourceAnnotation: "file"},
		}},
		Containers: []pod.Container{{
			ID: "c-" + string(uid), Name: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING,
			Annotations: map[string]string{pod.AnnotationTerminationGracePeriod: grace},
		}},
	}
}

// known are the pods that have workers.
type known []types.UID

func (k known) Known(uid types.UID) bool { return slices.Contains(k, uid) }

func successor() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "new", Namespace: "ns", Name: "p"}}
}

func TestOnlyAnUnknownStaticPodOfTheNameIsEnded(t *testing.T) {
	fromAPI := staticState("api", "p", "5")
	fromAPI.Sandboxes[0].Annotations[podutil.ConfigSourceAnnotation] = "api"
	unnamed := staticState("unnamed", "p", "5")
	delete(unnamed.Sandboxes[0].Annotations, podutil.ConfigSourceAnnotation)
	r := &fakeRuntime{pods: map[types.UID]*pod.State{
		"old":     staticState("old", "p", "5"),
		"other":   staticState("other", "q", "5"),
		"new":     staticState("new", "p", "5"),
		"known":   staticState("known", "p", "5"),
		"api":     fromAPI,
		"unnamed": unnamed,
	}}
	if err := New(r, known{"known"}, slog.New(slog.DiscardHandler)).End(t.Context(), successor()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stop c-old in 5s", "stop sandbox s-old"}; !slices.Equal(r.done, want) {
		t.Errorf("did %q, want %q", r.done, want)
	}
}

func TestAContainerGetsItsPodsGracePeriod(t *testing.T) {
	for grace, want := range map[string]time.Duration{"7": 7 * time.Second, "": defaultGrace, "-1": defaultGrace} {
		r := &fakeRuntime{pods: map[types.UID]*pod.State{"old": staticState("old", "p", grace)}}
		if err := New(r, known{}, slog.New(slog.DiscardHandler)).End(t.Context(), successor()); err != nil {
			t.Fatal(err)
		}
		if first := fmt.Sprintf("stop c-old in %v", want); r.done[0] != first {
			t.Errorf("annotation %q: %s, want %s", grace, r.done[0], first)
		}
	}
}

// What runs on holds the ports still, so that the new version must not start.
func TestAContainerThatCannotBeStoppedKeepsItsSandbox(t *testing.T) {
	r := &fakeRuntime{pods: map[types.UID]*pod.State{"old": staticState("old", "p", "5")}, err: errors.New("hung")}
	if err := New(r, known{}, slog.New(slog.DiscardHandler)).End(t.Context(), successor()); !errors.Is(err, r.err) {
		t.Errorf("got %v", err)
	}
	if len(r.done) != 1 {
		t.Errorf("went on with %q", r.done)
	}
}
