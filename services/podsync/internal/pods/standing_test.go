package pods

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

func (n *node) standing(t *testing.T) Standing {
	t.Helper()
	all := n.workers.Standings()
	if len(all) != 1 {
		t.Fatalf("%d pods have a standing, want one", len(all))
	}
	return all[0]
}

func TestTheStandingSaysWhatKeepsAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Volumes = []v1.Volume{{Name: "config"}}
		n.cri.Fail("RunPodSandbox", status.Error(codes.Unknown, "no network"))
		n.breaks("Mount", "a", errors.Join(&volumes.Error{Volume: "config", Err: errors.New("configmap not found")}))
		n.apply(p)
		s := n.standing(t)
		if s.FailedStep != "create the sandbox" || s.Mounted || !s.Admitted || s.Phase != "sync" ||
			s.Next.Before(time.Now()) || !s.Began.IsZero() {
			t.Errorf("while its sandbox fails: %+v", s)
		}
		n.cri.Fail("RunPodSandbox", nil)
		n.wait(15 * time.Second)
		if s = n.standing(t); s.FailedStep != "mount volumes" || s.NotMounted["config"] != "configmap not found" {
			t.Errorf("while its volume is missing: %+v", s)
		}
		n.breaks("Mount", "a", nil)
		n.wait(time.Minute)
		if s = n.standing(t); s.FailedStep != "" || s.Error != "" || s.Failures != 0 || !s.Mounted ||
			len(s.Pulling) > 0 || s.State == nil || !s.State.AnyRunning() {
			t.Errorf("once it runs: %+v", s)
		}
	})
}

func TestTheStandingSaysThatAnImageIsPulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.slow["a"] = true // the pull never ends
		defer n.run()()
		began := time.Now()
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(time.Hour)
		s := n.standing(t)
		if p, pulling := s.Pulling["c"]; !pulling || p.Image != testPod("a").Spec.Containers[0].Image ||
			p.Began.Sub(began) > 10*time.Second || s.Began.IsZero() {
			t.Errorf("standing: %+v", s)
		}
	})
}

// A container that waits for the image of a volume does not say that it waits for its own.
func TestTheStandingSaysThatTheImageOfAVolumeIsPulled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.dispatcher.SetPod(withImageVolume(testPod("a"), "slow"), api)
		n.wait(time.Hour)
		if s := n.standing(t); s.Pulling["c"].Image != "slow" {
			t.Errorf("standing: %+v", s)
		}
	})
}

func TestTheStandingHasRefusedFieldsAndBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		p := testPod("a")
		p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{Lun: 1}}}}
		n.apply(p)
		if s := n.standing(t); len(s.Refused) != 1 || s.Refused[0] != "spec.volumes[0].iscsi" {
			t.Errorf("refused: %+v", s)
		}
		supported := testPod("a")
		supported.Generation++
		n.apply(supported)
		for range 3 {
			n.exit("c")
			n.wait(2 * time.Second)
		}
		if s := n.standing(t); len(s.Refused) != 0 || len(s.Waits) != 1 || !s.Waits[0].Until.After(time.Now()) {
			t.Errorf("in back-off: %+v", s)
		}
	})
}

func TestAPodThatIsHeldHasAStandingToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		const file = podsyncv1.PodSource_POD_SOURCE_FILE
		first, second := testPod("a"), testPod("b")
		second.Name, second.Namespace = first.Name, first.Namespace
		n.dispatcher.SetPod(first, file)
		n.dispatcher.SetPod(second, file)
		n.wait(time.Second)
		held, err := n.dispatcher.Held(t.Context())
		if err != nil || len(held) != 1 || held[0].Pod.UID != "b" || held[0].Phase != Held {
			t.Errorf("held %+v, %v", held, err)
		}
	})
}
