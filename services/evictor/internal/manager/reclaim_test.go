package manager

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// sweeper is a node on which unused images take some of the disk.
type sweeper struct {
	*machine
	images int64
}

func (s *sweeper) DeleteUnusedImages(context.Context) error {
	s.note("images")
	s.Lock()
	defer s.Unlock()
	s.disk, s.images = s.disk+s.images, 0
	return nil
}

// No pod goes if the node can free as much as the threshold and its minimum reclaim want. The condition comes
// nevertheless.
func TestImagesGoBeforePods(t *testing.T) {
	for images, want := range map[int64][]string{
		10: {"containers", "images"},
		9:  {"containers", "images", "evict hog in 1 s"},
		0:  {"containers", "images", "evict hog in 1 s"},
	} {
		s := &sweeper{newMachine(t), images}
		s.disk = 5
		s.add("hog", gi, nil)
		o := s.options(nil, nil)
		var err error
		o.Thresholds, err = threshold.Parse(threshold.Config{
			Hard: map[string]string{"nodefs.available": "10"}, MinimumReclaim: map[string]string{"nodefs.available": "5"},
		})
		if err != nil {
			t.Fatal(err)
		}
		o.Node = s
		s.run(o, Adopted{}, 900*time.Millisecond, func() {
			if !slices.Equal(s.did, want) || s.under(v1.NodeDiskPressure) != v1.ConditionTrue {
				t.Errorf("%d of images: did %q, %v; want %q", images, s.did, s.pressure, want)
			}
			s.disk = max(s.disk, 20)
		}, 10*time.Minute, func() {
			if !slices.Equal(s.did, want) || s.under(v1.NodeDiskPressure) != v1.ConditionFalse {
				t.Errorf("%d of images: afterwards did %q, %v", images, s.did, s.pressure)
			}
		})
	}
}

func TestWhatIsReclaimedFirst(t *testing.T) {
	one, split := threshold.Layout{ImageFs: true}, threshold.Layout{ImageFs: true, SplitContainerFs: true}
	for _, test := range []struct {
		signal             signal.Signal
		layout             threshold.Layout
		containers, images bool
	}{
		{signal.MemoryAvailable, threshold.Layout{}, false, false}, {signal.PIDAvailable, one, false, false},
		{signal.NodeFsAvailable, threshold.Layout{}, true, true}, {signal.ImageFsInodesFree, threshold.Layout{}, true, true},
		{signal.NodeFsAvailable, one, false, false}, {signal.ImageFsAvailable, one, true, true},
		{signal.ContainerFsAvailable, one, true, true},
		{signal.NodeFsInodesFree, split, true, false}, {signal.ImageFsAvailable, split, false, true},
		{signal.ContainerFsAvailable, split, true, false},
	} {
		containers, images := reclaims(test.signal, test.layout)
		if containers != test.containers || images != test.images {
			t.Errorf("%s with %+v: containers %t, images %t", test.signal, test.layout, containers, images)
		}
	}
}
