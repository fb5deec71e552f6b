package test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// olderPodsync has the method of VolumeStatsService in PodsyncService.
type olderPodsync struct {
	podsyncv1.UnimplementedPodsyncServiceServer
	asked chan string
}

func (p *olderPodsync) GetVolumeStats(_ context.Context, r *podsyncv1.GetVolumeStatsRequest) (
	*podsyncv1.GetVolumeStatsResponse, error) {
	p.asked <- r.GetPodUid() + " " + r.GetVolume()
	return &podsyncv1.GetVolumeStatsResponse{}, nil
}

// putClaim puts a pod with a claim.
func (n *node) putClaim(uid string) {
	n.t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
	text, err := p.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.pods.Put(subject.PodKey(uid), &podsyncv1.Pod{Pod: text})
	n.statuses.Put(subject.PodKey(uid), &podsyncv1.PodStatus{})
	n.pods.Complete()
	n.statuses.Complete()
}

func TestAnOlderPodsyncMeasuresClaims(t *testing.T) {
	n := newNode(t)
	cfg := n.Service()
	p := &olderPodsync{asked: make(chan string, 1)}
	n.Serve(cfg.Socket(role.Podsync), func(s *grpc.Server) { podsyncv1.RegisterPodsyncServiceServer(s, p) })
	n.putClaim("u")
	select {
	case got := <-p.asked:
		if got != "u data" {
			t.Errorf("asked for %q", got)
		}
	case <-time.After(patience):
		t.Error("podsync was not asked")
	}
}
