package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/sources"
)

// woken writes down who was woken.
type woken []string

func (w *woken) Wake(uid types.UID, reason string) { *w = append(*w, string(uid)+" for "+reason) }
func (w *woken) WakeAll(reason string)             { *w = append(*w, "all for "+reason) }

// pods has one pod, or fails.
type pods struct {
	pod *v1.Pod
	err error
}

func (l pods) Add(context.Context, []byte) (*v1.Pod, podsyncv1.RunPodResponse_Outcome, error) {
	return l.pod, podsyncv1.RunPodResponse_OUTCOME_CREATED, l.err
}
func (l pods) Remove(context.Context, string, string) (*v1.Pod, error) { return l.pod, l.err }
func (l pods) List(context.Context) ([]*v1.Pod, error)                 { return []*v1.Pod{l.pod}, l.err }

// mirrors know that pod too, and perhaps its status.
type mirrors struct {
	pod    *v1.Pod
	status *v1.PodStatus
}

func (m mirrors) Get(uid types.UID) (*v1.Pod, *v1.PodStatus) {
	if m.pod == nil || m.pod.UID != uid {
		return nil, nil
	}
	return m.pod, m.status
}

func localPodOf(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
}

func TestAHintOfAnOlderPleg(t *testing.T) {
	var w woken
	s := &podsync{workers: &w}
	for _, uid := range []string{"a", ""} {
		if _, err := s.WakePod(t.Context(), &podsyncv1.WakePodRequest{PodUid: uid}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a for pleg", "all for pleg"}; !slices.Equal(w, want) {
		t.Errorf("woken %q, want %q", w, want)
	}
}

func TestHealthIsTheDispatchersPulse(t *testing.T) {
	pulse := service.NewPulse()
	pulse.Turn()
	pulse.Turn()
	got, err := (&podsync{pulse: pulse}).GetHealth(t.Context(), &podsyncv1.GetHealthRequest{})
	if err != nil || got.GetTurns() != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestWhatFailsHasItsCode(t *testing.T) {
	for err, want := range map[error]codes.Code{
		fmt.Errorf("no name: %w", sources.ErrInvalid): codes.InvalidArgument, sources.ErrNotFound: codes.NotFound,
		sources.ErrConflict:      codes.AlreadyExists,
		context.DeadlineExceeded: codes.Unavailable, context.Canceled: codes.Unavailable,
		errors.New("disk full"): codes.Internal,
	} {
		s := &localPods{pods: pods{err: err}}
		_, run := s.RunPod(t.Context(), &podsyncv1.RunPodRequest{})
		_, remove := s.RemovePod(t.Context(), &podsyncv1.RemovePodRequest{})
		_, list := s.ListLocalPods(t.Context(), &podsyncv1.ListLocalPodsRequest{})
		for _, got := range []error{run, remove, list} {
			if status.Code(got) != want || status.Convert(got).Message() != err.Error() {
				t.Errorf("%v is reported as %v, want code %v", err, got, want)
			}
		}
	}
}

func TestAPodIsToldWithItsStatus(t *testing.T) {
	p := localPodOf("a")
	s := &localPods{pods: pods{pod: p}, mirrors: mirrors{p, &v1.PodStatus{Phase: v1.PodRunning}}}
	ran, err := s.RunPod(t.Context(), &podsyncv1.RunPodRequest{})
	if err != nil || ran.GetPod().GetUid() != "a" || ran.GetOutcome() != podsyncv1.RunPodResponse_OUTCOME_CREATED {
		t.Fatalf("%v, %v", ran, err)
	}
	got, err := s.GetLocalPod(t.Context(), &podsyncv1.GetLocalPodRequest{Uid: "a"})
	if err != nil || got.GetPod().GetNamespace() != "ns" || got.GetPod().GetName() != "p" {
		t.Fatalf("%v, %v", got, err)
	}
	var phase v1.PodStatus
	if err := phase.Unmarshal(got.GetStatus()); err != nil || phase.Phase != v1.PodRunning {
		t.Errorf("status %v, %v", phase, err)
	}
	if _, err := s.GetLocalPod(t.Context(), &podsyncv1.GetLocalPodRequest{Uid: "b"}); status.Code(err) != codes.NotFound {
		t.Errorf("a pod that is not here: %v", err)
	}
	// The pod has no status yet, or is only known to its source.
	for _, s.mirrors = range []mirrors{{pod: p}, {}} {
		if got, err = s.GetLocalPod(t.Context(), &podsyncv1.GetLocalPodRequest{Uid: "a"}); err != nil ||
			got.GetPod().GetUid() != "a" || got.GetStatus() != nil {
			t.Errorf("a pod that has no status yet: %v, %v", got, err)
		}
	}
}
