package csivolume

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

// A call goes on when its caller gives up, and callers that come again begin no other one until it is over.
func TestACallOutlastsItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, began := locks{calls: newCalls()}, time.Now()
		var calls, cut atomic.Int32
		attempt := func(patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			locked, err := l.lock(ctx, device{driverName, "h"})
			if err != nil {
				return err
			}
			defer locked.release()
			return locked.call(ctx, func(ctx context.Context) error {
				calls.Add(1)
				time.Sleep(90 * time.Second)
				if ctx.Err() != nil {
					cut.Add(1)
				}
				return nil
			})
		}
		if err := attempt(10 * time.Second); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("the first caller: %v", err)
		}
		for range 3 {
			if err := attempt(20 * time.Second); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller that has to wait: %v", err)
			}
		}
		if took := time.Since(began); calls.Load() != 1 || took != 70*time.Second {
			t.Errorf("%d calls began within %v", calls.Load(), took)
		}
		if err := attempt(2 * time.Minute); err != nil || time.Since(began) != 180*time.Second {
			t.Errorf("the last caller, after %v: %v", time.Since(began), err)
		}
		if calls.Load() != 2 || cut.Load() != 0 {
			t.Errorf("%d calls, %d of them cut", calls.Load(), cut.Load())
		}
	})
}

// A caller that has gone begins no call, and keeps no lock.
func TestACallerThatHasGoneBeginsNoCall(t *testing.T) {
	l := locks{calls: newCalls()}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ended := newCalls()
	ended.end()
	for _, c := range []struct {
		calls *calls
		ctx   context.Context
		want  error
	}{{newCalls(), gone, status.FromContextError(context.Canceled).Err()}, {ended, t.Context(), errEnds}} {
		l.calls = c.calls
		locked, err := l.lock(t.Context(), device{driverName, "h"})
		if err != nil {
			t.Fatal(err)
		}
		err = locked.call(c.ctx, func(context.Context) error {
			t.Error("it was called")
			return nil
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
		locked.release()
		again, err := l.lock(gone, device{driverName, "h"})
		if err != nil {
			t.Fatalf("the volume stays locked: %v", err)
		}
		again.release()
	}
}

// The process ends when the calls are over, and does not wait for long.
func TestTheEndOfTheCalls(t *testing.T) {
	for lasts, want := range map[time.Duration]time.Duration{lastWait / 2: lastWait / 2, time.Hour: lastWait} {
		synctest.Test(t, func(t *testing.T) {
			vs := New(Options{RootDir: t.TempDir()})
			ctx, cancel := context.WithCancel(t.Context())
			locked, err := vs.locks.lock(ctx, device{driverName, "h"})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer locked.release()
				_ = locked.call(ctx, func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-time.After(lasts):
					}
					return nil
				})
			}()
			synctest.Wait()
			began := time.Now()
			cancel()
			if err := vs.Run(ctx); err != nil || time.Since(began) != want {
				t.Errorf("a call that lasts %v: the end after %v, %v", lasts, time.Since(began), err)
			}
		})
	}
}

// A driver that notices no end of a call has no other one on the volume meanwhile: its pod is deleted, for example,
// while it publishes.
func TestNoCallBesideOneThatWasGivenUp(t *testing.T) {
	expand := func(ctx context.Context, vs *Volumes) error {
		return vs.Expand(ctx, claimed(pod("u1"), "h"), resource.MustParse("2Gi"))
	}
	for method, c := range map[string]struct {
		has bool
		do  func(context.Context, *Volumes) error
	}{
		"NodeStageVolume": {false, up}, "NodePublishVolume": {false, up}, "NodeExpandVolume": {true, expand},
		"NodeUnpublishVolume": {true, down}, "NodeUnstageVolume": {true, down},
	} {
		t.Run(method, func(t *testing.T) {
			d := csitest.Start(t, stages, expands)
			vs := newVolumes(t, t.TempDir(), d, unattached())
			if c.has {
				if err := up(t.Context(), vs); err != nil {
					t.Fatal(err)
				}
			}
			calls, goOn := holdCall(d, method)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.do(ctx, vs) }()
			call := <-calls
			for ; call.method != method; call = <-calls {
			}
			if left := time.Until(call.deadline); left < time.Minute || left > 2*time.Minute {
				t.Errorf("the call ends in %v", left)
			}
			cancel()
			if err := <-done; status.Code(err) != codes.Canceled {
				t.Errorf("the caller: %v", err)
			}
			soon, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer stop()
			if err := down(soon, vs); !errors.Is(err, context.DeadlineExceeded) || len(calls) > 0 {
				t.Errorf("%d calls on the volume beside the one that is under way; %v", len(calls), err)
			}
			d.Before(nil)
			close(goOn)
			release(t, vs, "u1")
			if found := append(left(t, vs.layout.root), d.Left()...); len(found) > 0 {
				t.Errorf("left: %q", found)
			}
		})
	}
}

// heldCall is a call of a driver on a volume.
type heldCall struct {
	method   string
	deadline time.Time
}

// holdCall returns the calls on volumes that follow. Those of a method go on when goOn is closed, and not when they
// end.
func holdCall(d *csitest.Driver, method string) (calls chan heldCall, goOn chan struct{}) {
	calls, goOn = make(chan heldCall, 10), make(chan struct{})
	d.Before(func(ctx context.Context, called string) error {
		if strings.HasSuffix(called, "Volume") {
			deadline, _ := ctx.Deadline()
			calls <- heldCall{called, deadline}
		}
		if called == method {
			<-goOn
		}
		return nil
	})
	return calls, goOn
}
