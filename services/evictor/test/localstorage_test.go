package test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// fakeStats says what the volume of each pod takes.
type fakeStats struct {
	statsv1.UnimplementedStatsServiceServer
	used map[string]uint64
}

func (f *fakeStats) Summary(context.Context, *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error) {
	var s statsapi.Summary
	for uid, used := range f.used {
		fs := statsapi.FsStats{Time: metav1.Now(), UsedBytes: &used}
		s.Pods = append(s.Pods, statsapi.PodStats{
			PodRef:      statsapi.PodReference{UID: uid},
			VolumeStats: []statsapi.VolumeStats{{Name: "scratch", FsStats: fs}},
		})
	}
	text, err := json.Marshal(s)
	return &statsv1.SummaryResponse{Json: text, Taken: timestamppb.Now()}, err
}

// putLimited puts a pod that runs and has a volume with a limit.
func (n *node) putLimited(uid string) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{
		EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))}}}}
	body, err := p.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.pods.Put(subject.PodKey(uid), &podsyncv1.Pod{Pod: body})
	n.statuses.Put(subject.PodKey(uid), &podsyncv1.PodStatus{
		Containers: []*podsyncv1.Container{{Name: "c", Id: "x", State: running}},
	})
	n.pods.Complete()
	n.statuses.Complete()
}

// fill writes to the volume of a pod.
func (n *node) fill(uid string, bytes int) {
	n.t.Helper()
	dir := filepath.Join(n.cfg.Kubelet.Node.RootDir, "pods", uid, "volumes", "kubernetes.io~empty-dir", "scratch")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, bytes), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// A pod that exceeds the limit of its volume goes, without a disruption: it is its own doing. What stats says of a pod
// is not enough.
func TestAPodThatExceedsItsStorageIsEvicted(t *testing.T) {
	n := newNode(t, nil)
	stats := &fakeStats{used: map[string]uint64{"below": 1 << 20, "above": 1<<20 + 1, "accused": 1 << 40}}
	n.fill("above", 2<<20)
	n.fill("accused", 1<<19)
	t.Cleanup(n.Serve(n.cfg.Service.Socket(role.Stats),
		func(s *grpc.Server) { statsv1.RegisterStatsServiceServer(s, stats) }))
	n.putLimited("below")
	n.putLimited("accused")
	n.putLimited("above")
	n.start()
	proctest.Await(t, patience, "the eviction", func() bool { return len(n.asked()) > 0 })
	time.Sleep(3 * time.Second)
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.evicted[0]
	if len(n.evicted) != 1 || r.GetPodUid() != "above" || r.GetGracePeriodSeconds() != 1 || r.GetDisruptionTarget() ||
		r.GetMessage() != "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". " {
		t.Errorf("asked for %v", n.evicted)
	}
	if l := r.GetExceededLimit(); l.GetEmptyDir() != "scratch" || l.GetUsedBytes() < 2<<20 {
		t.Errorf("for the limit %v", l)
	}
}

// olderPodsync has the methods of EvictionService in PodsyncService.
type olderPodsync struct {
	podsyncv1.UnimplementedPodsyncServiceServer
	*node
}

func (o olderPodsync) Evict(ctx context.Context, r *podsyncv1.EvictRequest) (*podsyncv1.EvictResponse, error) {
	return o.node.Evict(ctx, r)
}

func TestAnOlderPodsyncEvicts(t *testing.T) {
	n := newNode(t, nil)
	n.stopPodsync()
	n.Serve(n.cfg.Service.Socket(role.Podsync),
		func(s *grpc.Server) { podsyncv1.RegisterPodsyncServiceServer(s, olderPodsync{node: n}) })
	n.fill("above", 2<<20)
	n.Serve(n.cfg.Service.Socket(role.Stats), func(s *grpc.Server) {
		statsv1.RegisterStatsServiceServer(s, &fakeStats{used: map[string]uint64{"above": 2 << 20}})
	})
	n.putLimited("above")
	n.start()
	proctest.Await(t, patience, "the eviction", func() bool { return len(n.asked()) > 0 })
}
