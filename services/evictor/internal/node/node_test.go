package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/evictor/internal/localstorage"
	"github.com/microlet/microlet/services/evictor/internal/manager"
	"github.com/microlet/microlet/services/evictor/internal/reading"
)

// peer answers a call, and keeps its request.
type peer struct {
	grpc.ClientConnInterface
	asked    any
	stopping bool
	err      error
	images   *runtimeapi.ImageFsInfoResponse
}

func (p *peer) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	p.asked = args
	if to, ok := reply.(*runtimeapi.ImageFsInfoResponse); ok && p.images != nil {
		to.ImageFilesystems, to.ContainerFilesystems = p.images.GetImageFilesystems(), p.images.GetContainerFilesystems()
	}
	if to, ok := reply.(*podsyncv1.EvictResponse); ok {
		to.Stopping = p.stopping
	}
	return p.err
}

func TestARefusedEvictionIsToldFromOneThatTakesLong(t *testing.T) {
	for code, refused := range map[codes.Code]bool{
		codes.OK: false, codes.NotFound: true, codes.FailedPrecondition: true, codes.Unavailable: false,
		codes.DeadlineExceeded: false, codes.Internal: false,
	} {
		p := &peer{err: status.Error(code, "no")}
		stopped, err := New(p, nil, nil, nil).Evict(t.Context(), manager.Eviction{
			Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Message: "low", GraceSeconds: 3,
			Exceeded: &localstorage.Excess{EmptyDir: "v", Container: "c", UsedBytes: 7},
		})
		if errors.Is(err, manager.ErrRefused) != refused || (err == nil) != (code == codes.OK) || stopped != (err == nil) {
			t.Errorf("%v: stopped %t, %v", code, stopped, err)
		}
		r := p.asked.(*podsyncv1.EvictRequest)
		if l := r.GetExceededLimit(); l.GetEmptyDir() != "v" || l.GetContainer() != "c" || l.GetUsedBytes() != 7 {
			t.Errorf("asked for the limit %v", l)
		}
		if r.GetPodUid() != "u" || r.GetMessage() != "low" || r.GetGracePeriodSeconds() != 3 {
			t.Errorf("asked for %v", r)
		}
	}
}

// The answer of an older podsync has no field: the pod has stopped.
func TestAPodThatIsStoppingHasNotStopped(t *testing.T) {
	e := manager.Eviction{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Message: "low"}
	for _, stopping := range []bool{false, true} {
		p := &peer{stopping: stopping}
		if stopped, err := New(p, nil, nil, nil).Evict(t.Context(), e); stopped == stopping || err != nil {
			t.Errorf("stopping is %t: stopped is %t, %v", stopping, stopped, err)
		}
	}
}

// A pod cannot escape by words that are too long: podsync refuses those.
func TestLongWordsAreCut(t *testing.T) {
	p := &peer{}
	_, err := New(p, nil, nil, nil).Evict(t.Context(), manager.Eviction{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Message: strings.Repeat("ä", podsyncv1.MaxEvictMessage),
		GraceSeconds: 1 << 40, Annotations: map[string]string{"names": strings.Repeat("x,", podsyncv1.MaxEvictAnnotation)},
	})
	r := p.asked.(*podsyncv1.EvictRequest)
	if err != nil || len(r.GetMessage()) != podsyncv1.MaxEvictMessage || !utf8.ValidString(r.GetMessage()) ||
		len("names")+len(r.GetAnnotations()["names"]) != podsyncv1.MaxEvictAnnotation ||
		r.GetGracePeriodSeconds() != podsyncv1.MaxEvictGracePeriodSeconds {
		t.Errorf("asked with %d bytes and %d, %d s: %v", len(r.GetMessage()), len(r.GetAnnotations()["names"]),
			r.GetGracePeriodSeconds(), err)
	}
}

func TestTheEventIsTheKubelets(t *testing.T) {
	events := record.NewFakeRecorder(1)
	New(nil, nil, events, &v1.ObjectReference{}).ThresholdMet(v1.ResourceMemory)
	if got := <-events.Events; got != "Warning EvictionThresholdMet Attempting to reclaim memory" {
		t.Errorf("event %q", got)
	}
}

func TestWhereTheRuntimeKeepsItsFiles(t *testing.T) {
	at := func(path string) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: path}}}
	}
	for name, test := range map[string]struct {
		images *runtimeapi.ImageFsInfoResponse
		want   reading.Filesystems
	}{
		"two": {&runtimeapi.ImageFsInfoResponse{ImageFilesystems: at("/i"), ContainerFilesystems: at("/c")},
			reading.Filesystems{Images: "/i", Containers: "/c"}},
		"old": {&runtimeapi.ImageFsInfoResponse{ImageFilesystems: at("/i")},
			reading.Filesystems{Images: "/i", Containers: "/i"}},
		"none": {&runtimeapi.ImageFsInfoResponse{}, reading.Filesystems{}},
	} {
		got, err := Filesystems(&peer{images: test.images})(t.Context())
		if got != test.want || (err != nil) != (name == "none") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
