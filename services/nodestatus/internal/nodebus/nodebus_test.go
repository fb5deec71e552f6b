package nodebus

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
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
