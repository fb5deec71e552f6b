//go:build machine && long

package identity

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
)

const (
	// clockLife is that of the client certificates. One that was requested when the clock jumped ahead is not renewed
	// before it jumps back.
	clockLife = 5 * time.Minute
	// jumpTime is how long the clock stays wrong.
	jumpTime = 2 * time.Minute
)

// TestClockJumps sets the clock of the node's machine, and leaves that of the API server as it is.
//
// First it is an hour ahead, so that each certificate has ended by the node's clock. The API server, which judges them,
// knows the node on. Then it is an hour behind, until the certificate has ended while the node takes it for valid, and
// jumps to the right time, as after a suspension. The node gets a new certificate.
func TestClockJumps(t *testing.T) {
	s := scene.New(t)
	j := newJoin(t, s)
	g := newSigner(t, s, clockLife)
	j.start(t)
	w := createProbedPods(s, 5)
	clock := newClock(t, s)

	mark, before := s.Record.Mark(), time.Now()
	clock.set(time.Hour)
	time.Sleep(jumpTime)
	signed, _ := g.answers()
	if len(signed) < 2 {
		t.Errorf("the node requested no certificate: by its clock, it had none that is valid")
	} else if len(signed) > 4 {
		t.Errorf("the node requested %d certificates in %s", len(signed)-1, jumpTime)
	}
	if err := s.LeaseRenewals(mark, int(jumpTime/(20*time.Second))); err != nil {
		t.Errorf("with a clock that is ahead, the Lease: %v", err)
	}
	mark = s.Record.Mark()
	clock.set(0)
	scene.Await(t, scene.Patience, "the Lease of the right time", func() error { return s.LeaseRenewals(mark, 2) })
	t.Logf("an hour ahead for %s: %d certificates were requested, the node stayed", jumpTime, len(signed)-1)
	w.Untouched()
	w.NodeReady()
	if refused := refusals(t, s, before); len(refused) > 0 {
		t.Errorf("the API server did not know a caller: %v", refused)
	}

	clock.set(-time.Hour)
	end := j.end(t)
	asked, _ := g.answers()
	scene.Await(t, 2*clockLife, "the end of the certificate", func() error {
		if len(refusals(t, s, end)) == 0 {
			return errors.New("no request was refused")
		}
		return nil
	})
	if now, _ := g.answers(); len(now) != len(asked) {
		t.Errorf("an hour behind, the node requested %d certificates", len(now)-len(asked))
	}
	clock.set(0)
	right := time.Now()
	scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(right) })
	t.Logf("the Lease was renewed %s after the clock was set right", scene.Milliseconds(time.Since(right)))
	scene.Await(t, scene.Patience, "a node that is Ready", func() error {
		for _, c := range s.Record.View().Node().Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not")
	})
	w.Untouched()
}

// clock is that of the node's machine.
type clock struct {
	t *testing.T
	s *scene.Scene
}

// newClock sets it right when the test ends.
func newClock(t *testing.T, s *scene.Scene) *clock {
	t.Helper()
	c := &clock{t, s}
	t.Cleanup(func() { c.set(0) })
	return c
}

// set sets it to so much before or after this machine's.
func (c *clock) set(by time.Duration) {
	c.t.Helper()
	ctx := context.WithoutCancel(c.t.Context())
	want := "@" + strconv.FormatInt(time.Now().Add(by).Unix(), 10)
	if _, err := c.s.RunOnMachine(ctx, "date", "--set", want); err != nil {
		c.t.Fatal(err)
	}
	seconds, err := c.s.NumberOnMachine("date", "+%s")
	if err != nil {
		c.t.Fatal(err)
	}
	if off := time.Unix(int64(seconds), 0).Sub(time.Now().Add(by)); off.Abs() > time.Minute {
		c.t.Fatalf("the clock is off by %s", off)
	}
}
