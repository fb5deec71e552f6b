package hint

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/pleg/internal/relist"
)

// fakes is a bus and a podsync that remember what they were given, and can both be away.
type fakes struct {
	mu         sync.Mutex
	busErr     error
	podsyncErr error
	published  []string
	woken      []string
}

func (f *fakes) Publish(subject string, _ proto.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busErr != nil {
		return f.busErr
	}
	f.published = append(f.published, subject)
	return nil
}

func (f *fakes) WakePod(_ context.Context, in *podsyncv1.WakePodRequest,
	_ ...grpc.CallOption) (*podsyncv1.WakePodResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.podsyncErr != nil {
		return nil, f.podsyncErr
	}
	f.woken = append(f.woken, in.GetPodUid())
	return &podsyncv1.WakePodResponse{}, nil
}

func (f *fakes) set(bus, podsync error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busErr, f.podsyncErr = bus, podsync
}

func (f *fakes) seen() (published, woken []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.published), slices.Clone(f.woken)
}

func run(t *testing.T, f func(t *testing.T, h *Hinter, fakes *fakes)) {
	synctest.Test(t, func(t *testing.T) {
		fakes := &fakes{}
		h := New(fakes, fakes, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		f(t, h, fakes)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestBusThatLivesNeedsNoSecondWay(t *testing.T) {
	run(t, func(t *testing.T, h *Hinter, f *fakes) {
		h.Hint(relist.Event{Type: relist.ContainerDied, PodUID: "a", ID: "c"})
		synctest.Wait()
		published, _ := f.seen()
		if want := []string{"microlet.evt.pleg.lifecycle.a"}; !slices.Equal(published, want) {
			t.Fatalf("published %v, want %v at once", published, want)
		}
		pass(time.Second)
		h.BusSpoke()
		pass(10 * time.Second)
		if _, woken := f.seen(); len(woken) != 0 {
			t.Errorf("woken %v, want none", woken)
		}
	})
}

func TestBusThatIsAwayIsPassedAtOnce(t *testing.T) {
	run(t, func(t *testing.T, h *Hinter, f *fakes) {
		f.set(errors.New("away"), nil)
		h.Hint(relist.Event{PodUID: "a"})
		synctest.Wait()
		if _, woken := f.seen(); !slices.Equal(woken, []string{"a"}) {
			t.Errorf("woken %v, want a", woken)
		}
	})
}

func TestBusThatHangsIsPassedAfterSomeSeconds(t *testing.T) {
	run(t, func(t *testing.T, h *Hinter, f *fakes) {
		h.Hint(relist.Event{PodUID: "a"})
		synctest.Wait()
		h.BusSpoke() // too early to prove anything
		pass(patience + 2*retry)
		if _, woken := f.seen(); !slices.Equal(woken, []string{"a"}) {
			t.Errorf("woken %v, want a", woken)
		}
	})
}

func TestPodsyncThatIsAwayTooIsToldLater(t *testing.T) {
	run(t, func(t *testing.T, h *Hinter, f *fakes) {
		f.set(errors.New("away"), errors.New("away too"))
		h.Hint(relist.Event{PodUID: "a"})
		h.Hint(relist.Event{PodUID: "b"})
		h.Hint(relist.Event{PodUID: "a"})
		pass(time.Minute)
		f.set(nil, nil)
		pass(2 * retry)
		if _, woken := f.seen(); !slices.Equal(woken, []string{"a", "b"}) {
			t.Errorf("woken %v, want each pod once", woken)
		}
	})
}

func TestForeignPodIsIgnored(t *testing.T) {
	run(t, func(t *testing.T, h *Hinter, f *fakes) {
		h.Hint(relist.Event{PodUID: "a.*.>"})
		pass(time.Minute)
		if published, woken := f.seen(); len(published)+len(woken) != 0 {
			t.Errorf("published %v, woken %v, want nothing", published, woken)
		}
	})
}
