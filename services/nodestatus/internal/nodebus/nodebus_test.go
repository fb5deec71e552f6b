package nodebus

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "k8s.io/api/core/v1"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// beats are heartbeats by their keys.
type beats map[string]*busv1.Heartbeat

func (b beats) All() map[string]*busv1.Heartbeat { return b }

func beat(started time.Time, turns uint64) *busv1.Heartbeat {
	return &busv1.Heartbeat{Started: timestamppb.New(started), Turns: turns}
}

// The entry of a podsync that was killed may outlive it.
func TestTheHeartbeatOfTheNewestPodsyncCounts(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	e := &Entries{heartbeats: beats{}}
	if got := e.PodsyncHeartbeat(); got != nil {
		t.Errorf("without one: %v", got)
	}
	e.heartbeats = beats{
		"podsync.0": beat(began, 7),
		"podsync.1": beat(began.Add(time.Second), 3),
		"pleg.0":    beat(began.Add(time.Minute), 1),
	}
	if got := e.PodsyncHeartbeat().GetTurns(); got != 3 {
		t.Errorf("got the one with %d turns", got)
	}
}

func TestAListIsAcceptedIfTheNodeHasIt(t *testing.T) {
	list := &podsyncv1.Volumes{InUse: []string{"a", "b"}, Instance: "i", Generation: 7}
	n := &v1.Node{}
	n.Status.VolumesInUse = []v1.UniqueVolumeName{"a", "b"}
	if m := reported(n, list); m.GetVolumesInstance() != "i" || m.GetVolumesGeneration() != 7 ||
		!m.GetRegistered() || len(m.GetVolumesInUse()) != 2 {
		t.Errorf("%v", m)
	}
	n.Status.VolumesInUse = []v1.UniqueVolumeName{"a"}
	if m := reported(n, list); m.GetVolumesInstance() != "" || m.GetVolumesGeneration() != 0 {
		t.Errorf("another list is accepted: %v", m)
	}
	newer := &podsyncv1.Volumes{InUse: []string{"a", "b"}, Instance: "i", Generation: 8}
	earlier := &podsyncv1.Volumes{InUse: []string{"a"}, Instance: "i", Generation: 7}
	if m := reported(n, newer, earlier); m.GetVolumesInstance() != "i" || m.GetVolumesGeneration() != 7 {
		t.Errorf("the list that the Node was made to show, beside a newer one: %v", m)
	}
	if m := reported(n, earlier, newer); m.GetVolumesGeneration() != 7 {
		t.Errorf("the newest list, beside another one: %v", m)
	}
	n.Status.VolumesInUse = nil
	if m := reported(n, nil); m.GetVolumesInstance() != "" {
		t.Errorf("no list is accepted: %v", m)
	}
	if m := reported(n, &podsyncv1.Volumes{Instance: "i", Generation: 1}); m.GetVolumesGeneration() != 1 {
		t.Errorf("an empty list is not: %v", m)
	}
}

// Devices that change their health at any rate have the Node updated once a second.
func TestChangesOfDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		changed := seldom(func(string) { calls.Add(1) })
		for range 100 {
			changed("resources")
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(extendedPeriod)
		if n := calls.Load(); n < 5 || n > 7 {
			t.Errorf("%d calls in 5 s", n)
		}
	})
}
