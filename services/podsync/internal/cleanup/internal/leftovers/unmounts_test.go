package leftovers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// slowVolumes are unmounted after a while, those of pods called hung-… never.
type slowVolumes struct {
	*machine
	takes time.Duration
	// refuses are pods with volumes that cannot be unmounted.
	refuses []types.UID
}

func (s *slowVolumes) Unmount(ctx context.Context, uid types.UID) error {
	if err := s.machine.Unmount(ctx, uid); err != nil {
		return err
	}
	if slices.Contains(s.refuses, uid) {
		return errors.New("the driver is away")
	}
	takes := s.takes
	if strings.HasPrefix(string(uid), "hung-") {
		takes = 24 * time.Hour
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(takes):
	}
	s.touch("unmounted " + string(uid))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.folders = slices.DeleteFunc(s.folders, func(other types.UID) bool { return other == uid })
	return nil
}

// did counts what was done.
func (m *machine) did(what string) (times int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.touched {
		if one == what {
			times++
		}
	}
	return times
}

// TestVolumesThatHangHoldUpNothing: neither other pods' volumes nor the next rounds, however many hang.
func TestVolumesThatHangHoldUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		const hung = 3 * unmountsAtOnce
		for i := range hung {
			m.folders = append(m.folders, types.UID(fmt.Sprintf("hung-%d", i)))
		}
		m.folders = append(m.folders, "a", "b")
		m.cgroups = map[types.UID]string{"a": "a"}
		c := m.cleanup(t)
		c.Volumes = &slowVolumes{machine: &m, takes: time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		for range 2 {
			if err := c.once(ctx); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 0 || m.did("cgroup a") != 2 {
			t.Errorf("two rounds took %s, and what comes after volumes was done %d times", took, m.did("cgroup a"))
		}
		time.Sleep((hung/unmountsAtOnce + 1) * unmountSlow)
		for _, uid := range []string{"a", "b"} {
			if m.did("unmounted "+uid) != 1 {
				t.Errorf("pod %s still has volumes", uid)
			}
		}
		cancel()
		c.unmounts.wait()
	})
}

// TestOfOnePodOneUnmountIsUnderWay, and the next one begins after its deadline.
func TestOfOnePodOneUnmountIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine{folders: []types.UID{"hung-0"}}
		c := m.cleanup(t)
		c.Volumes = &slowVolumes{machine: &m}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		for time.Since(began) < unmountTimeout {
			if err := c.once(ctx); err != nil {
				t.Error(err)
			}
			if times := m.did("unmount hung-0"); time.Since(began) > 0 && times != 1 {
				t.Fatalf("%d unmounts after %s", times, time.Since(began))
			}
			time.Sleep(Period)
		}
		synctest.Wait()
		if err := c.once(ctx); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if times := m.did("unmount hung-0"); times != 2 {
			t.Errorf("%d unmounts after the deadline of the first", times)
		}
		cancel()
		c.unmounts.wait()
	})
}

// TestTheEndWaitsForUnmounts: nothing of them goes on after it.
func TestTheEndWaitsForUnmounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine{folders: []types.UID{"hung-0"}}
		c := m.cleanup(t)
		c.Volumes = &slowVolumes{machine: &m}
		ctx, cancel := context.WithTimeout(t.Context(), 3*Period/2)
		defer cancel()
		synced := make(chan struct{})
		close(synced)
		if err := c.Run(ctx, synced); err != nil {
			t.Error(err)
		}
		if c.unmounts.underWay["hung-0"] || m.did("unmount hung-0") != 1 {
			t.Errorf("an unmount goes on: %q", m.touched)
		}
	})
}

// TestAPodThatComesWhileOthersHangKeepsItsVolumes: they are its worker's.
func TestAPodThatComesWhileOthersHangKeepsItsVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m machine
		for i := range unmountsAtOnce {
			m.folders = append(m.folders, types.UID(fmt.Sprintf("hung-%d", i)))
		}
		c := m.cleanup(t)
		c.Volumes = &slowVolumes{machine: &m}
		ctx, cancel := context.WithCancel(t.Context())
		if err := c.volumes(ctx, map[types.UID]*pod.State{}); err != nil {
			t.Error(err)
		}
		synctest.Wait() // they have all places
		m.folders = append(m.folders, "comes")
		if err := c.volumes(ctx, map[types.UID]*pod.State{}); err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		m.known = []types.UID{"comes"}
		m.mu.Unlock()
		time.Sleep(2 * unmountSlow)
		if m.did("unmount comes") != 0 {
			t.Error("a pod with a worker has lost its volumes")
		}
		cancel()
		c.unmounts.wait()
	})
}

func TestMetricsOfUnmounts(t *testing.T) {
	m := machine{folders: []types.UID{"a", "b", "refused"}}
	c := m.cleanup(t)
	v := &slowVolumes{machine: &m, refuses: []types.UID{"refused"}}
	c.Volumes = v
	want := func(when string, cleaned, failed float64) {
		t.Helper()
		if err := c.round(t.Context()); err != nil {
			t.Error(err)
		}
		if got := testutil.ToFloat64(c.Metrics.volumes); got != cleaned {
			t.Errorf("%s: %v are clean, want %v", when, got, cleaned)
		}
		if got := testutil.ToFloat64(c.Metrics.volumeErrors); got != failed {
			t.Errorf("%s: %v have failed, want %v", when, got, failed)
		}
	}
	want("the first round", 2, 1)
	want("the next round", 0, 1)
	v.refuses = nil
	want("with the driver", 1, 0)
	m.folders, v.refuses = []types.UID{"refused"}, []types.UID{"refused"}
	want("a failure", 0, 1)
	m.folders = nil
	want("without the pod", 0, 0)
}
