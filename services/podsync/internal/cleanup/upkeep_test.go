package cleanup

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// house writes down what is done in it.
type house struct {
	did      []string
	driver   error
	unsynced []podsyncv1.PodSource
	heard    time.Time // when all sources are heard; zero: never
}

func (h *house) Confirm(context.Context) error { return h.driver }
func (h *house) Collect()                      { h.did = append(h.did, "tokens") }
func (h *house) waiting(status string)         { h.did = append(h.did, status) }

func (h *house) Unsynced() []podsyncv1.PodSource {
	if !h.heard.IsZero() && time.Now().After(h.heard) {
		return nil
	}
	return h.unsynced
}

func (h *house) UpdateQOS(pods []*v1.Pod) error {
	h.did = append(h.did, "cgroups")
	if len(pods) != 1 {
		return errors.New("other pods")
	}
	return nil
}

func (h *house) upkeep() *upkeep {
	return &upkeep{
		driver:  h,
		tokens:  h,
		sources: h,
		cgroups: h,
		pods:    func() []*v1.Pod { return []*v1.Pod{{}} },
		waiting: h.waiting,
		log:     slog.New(slog.DiscardHandler),
	}
}

// Shares are not changed for pods of which some are not known yet.
func TestCgroupsFollowThePodsOnceAllAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{
			unsynced: []podsyncv1.PodSource{podsyncv1.PodSource_POD_SOURCE_FILE, podsyncv1.PodSource_POD_SOURCE_API},
			heard:    time.Now().Add(upkeepPeriod + time.Second),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*upkeepPeriod+time.Second)
		defer cancel()
		if err := h.upkeep().run(ctx); err != nil {
			t.Fatal(err)
		}
		want := []string{"tokens", "waiting for pod sources: file, api", "tokens", "cgroups"}
		if !slices.Equal(h.did, want) {
			t.Errorf("did %q, want %q", h.did, want)
		}
	})
}

func TestTheWrongDriverEndsPodsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, began := &house{driver: errors.New("the runtime uses another")}, time.Now()
		if err := h.upkeep().run(t.Context()); !errors.Is(err, h.driver) || time.Since(began) != upkeepPeriod ||
			len(h.did) != 0 {
			t.Errorf("after %v and %q: %v", time.Since(began), h.did, err)
		}
	})
}
