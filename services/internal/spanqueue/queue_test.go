package spanqueue

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// receiver answers as answer says, and remembers what it has taken.
type receiver struct {
	answer func(ctx context.Context) error
	tries  []time.Time
	taken  [][]int
}

func (r *receiver) send(ctx context.Context, batch []int) error {
	r.tries = append(r.tries, time.Now())
	if r.answer != nil {
		if err := r.answer(ctx); err != nil {
			return err
		}
	}
	r.taken = append(r.taken, slices.Clone(batch))
	return nil
}

// logged is a log that is read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// fixture is a queue of numbers in place of spans.
type fixture struct {
	*Queue[int]
	*receiver
	metrics *prometheus.Registry
	log     logged
	stop    context.CancelFunc
	ended   chan struct{}
}

func start(t *testing.T, limit, batch int, answer func(context.Context) error) *fixture {
	t.Helper()
	f := &fixture{receiver: &receiver{answer: answer}, metrics: prometheus.NewRegistry(), ended: make(chan struct{})}
	var err error
	f.Queue, err = New(Options[int]{
		Limit: limit, Batch: batch, Send: f.receiver.send, Log: slog.New(slog.NewTextHandler(&f.log, nil)),
		Metrics: f.metrics,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.stop = cancel
	go func() {
		defer close(f.ended)
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return f
}

func (f *fixture) lost(reason string) float64 {
	return testutil.ToFloat64(f.dropped.WithLabelValues(reason))
}

func TestWhatIsAddedArrivesInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, 100, 2, nil)
		for i := range 5 {
			if !f.Add(i) {
				t.Errorf("%d is dropped", i)
			}
		}
		time.Sleep(2 * linger)
		synctest.Wait()
		want := [][]int{{0, 1}, {2, 3}, {4}}
		if !slices.EqualFunc(f.taken, want, slices.Equal) {
			t.Errorf("batches are %v, want %v", f.taken, want)
		}
		if sent := testutil.ToFloat64(f.sent); sent != 5 {
			t.Errorf("counted %v spans as sent", sent)
		}
		f.stop()
		<-f.ended
	})
}

func TestAReceiverThatHangsBoundsTheQueueAndDelaysNoSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hung atomic.Bool
		hung.Store(true)
		f := start(t, 10, 4, func(ctx context.Context) error {
			if hung.Load() {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}
			return nil
		})
		began, kept := time.Now(), 0
		for range 50 {
			if f.Add(1) {
				kept++
			}
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("adding took %v", took)
		}
		if kept != 10 || f.lost(reasonFull) != 40 {
			t.Errorf("kept %d and counted %v as dropped", kept, f.lost(reasonFull))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.Add(1) {
			t.Error("what is under way no longer counts")
		}
		if n := strings.Count(f.log.String(), "dropped"); n != 1 {
			t.Errorf("drops are logged %d times:\n%s", n, f.log.String())
		}
		hung.Store(false)
		time.Sleep(2 * retryMax)
		synctest.Wait()
		if sent := testutil.ToFloat64(f.sent); sent != 10 {
			t.Errorf("%v spans arrive once the receiver answers", sent)
		}
		f.stop()
		<-f.ended
	})
}

func TestOnlyWhatHelpsIsRepeated(t *testing.T) {
	for code, repeats := range map[codes.Code]bool{
		codes.Unavailable: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true, codes.Canceled: true,
		codes.InvalidArgument: false, codes.Unimplemented: false, codes.PermissionDenied: false, codes.Unknown: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, 10, 4, func(context.Context) error {
				return fmt.Errorf("wrapped: %w", status.Error(code, "no"))
			})
			f.Add(1)
			time.Sleep(linger + 5*time.Second)
			synctest.Wait()
			if again := len(f.tries) > 1; again != repeats {
				t.Errorf("%v: sent %d times", code, len(f.tries))
			}
			if refused := f.lost(reasonRefused) == 1; refused == repeats {
				t.Errorf("%v: counted %v as refused", code, f.lost(reasonRefused))
			}
			f.stop()
			<-f.ended
		})
	}
}

// TestABatchThatNeverArrivesIsNotInTheWay of those that do.
func TestABatchThatNeverArrivesIsNotInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, 10, 1, nil)
		f.answer = func(context.Context) error {
			if f.lost(reasonLate) == 0 {
				return status.Error(codes.ResourceExhausted, "this one is too large for me")
			}
			return nil
		}
		f.Add(1)
		f.Add(2)
		time.Sleep(patience + 2*retryMax)
		synctest.Wait()
		if len(f.taken) != 1 || f.taken[0][0] != 2 || f.lost(reasonLate) != 1 {
			t.Errorf("took %v, gave %v up", f.taken, f.lost(reasonLate))
		}
		f.stop()
		<-f.ended
	})
}

func TestTheEndSendsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, 10, 4, nil)
		for range 6 {
			f.Add(1)
		}
		f.stop()
		<-f.ended
		if len(f.taken) != 2 || f.lost(reasonStopped) != 0 {
			t.Errorf("took %v, lost %v", f.taken, f.lost(reasonStopped))
		}
	})
}

func TestTheEndWaitsForNoReceiver(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"hung": func(ctx context.Context) error { <-ctx.Done(); return status.FromContextError(ctx.Err()).Err() },
		"gone": func(context.Context) error { return status.Error(codes.Unavailable, "gone") },
	} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, 100, 4, answer)
			for range 20 {
				f.Add(1)
			}
			time.Sleep(3 * time.Second) // it is being sent
			began := time.Now()
			f.stop()
			<-f.ended
			if took := time.Since(began); took > flushTimeout {
				t.Errorf("%s: the end took %v", name, took)
			}
			if f.lost(reasonStopped) != 20 {
				t.Errorf("%s: counted %v of 20 as dropped", name, f.lost(reasonStopped))
			}
		})
	}
}

func TestAnIdleQueueSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, 100, 4, nil)
		time.Sleep(time.Hour)
		f.stop()
		<-f.ended
		if len(f.tries) != 0 {
			t.Errorf("sent at %v", f.tries)
		}
	})
}
