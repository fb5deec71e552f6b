package fsusage

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestUsageOfThisMachine(t *testing.T) {
	var p Prober
	dir := t.TempDir()
	u, err := p.Usage(t.Context(), dir)
	if err != nil || u.Capacity == 0 || u.Available > u.Free || u.Free > u.Capacity || time.Since(u.Time) > time.Minute {
		t.Errorf("the filesystem of a folder has %+v, %v", u, err)
	}
	if proc, err := p.Usage(t.Context(), "/proc"); err != nil || proc.DeviceID == u.DeviceID {
		t.Errorf("/proc is of device %d, %v; %s is of device %d", proc.DeviceID, err, dir, u.DeviceID)
	}
	if _, err := p.Usage(t.Context(), "/no/such/folder"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there has %v", err)
	}
	if len(p.calls) != 0 {
		t.Errorf("calls are left: %v", p.calls)
	}
}

// Blocks are counted in fragments, which are not the unit of transfer.
func TestUnits(t *testing.T) {
	now := time.Now()
	got := usageOf(&unix.Stat_t{Dev: 7}, &unix.Statfs_t{
		Bsize: 1 << 20, Frsize: 4096, Blocks: 10, Bfree: 5, Bavail: 3, Files: 9, Ffree: 8,
	}, now)
	want := Usage{
		Time: now, DeviceID: 7, Capacity: 40960, Free: 20480, Available: 12288, Inodes: 9, InodesFree: 8,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// One filesystem that hangs costs its callers a second in all and one thread, and the others nothing.
func TestAFilesystemThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var calls atomic.Int32
		p := Prober{ask: func(path string) (Usage, error) {
			if path == "/nfs" {
				calls.Add(1)
				<-release
			}
			return Usage{Capacity: 40960}, nil
		}}
		for _, want := range []time.Duration{patience, 0, 0} { // who asks later does not wait for it again
			began := time.Now()
			if _, err := p.Usage(t.Context(), "/nfs"); !errors.Is(err, ErrHangs) || time.Since(began) != want {
				t.Errorf("it answers %v after %s, want after %s", err, time.Since(began), want)
			}
			if u, err := p.Usage(t.Context(), "/"); err != nil || u.Capacity != 40960 {
				t.Errorf("another answers %+v, %v", u, err)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls hang", n)
		}
		close(release)
		synctest.Wait()
		if u, err := p.Usage(t.Context(), "/nfs"); err != nil || u.Capacity != 40960 || calls.Load() != 2 {
			t.Errorf("when it is back it answers %+v, %v after %d calls", u, err, calls.Load())
		}
	})
}

func TestFilesystemsThatHangAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := Prober{ask: func(string) (Usage, error) { <-release; return Usage{}, nil }}
		var last error
		for i := range maxPaths + 1 {
			_, last = p.begin("/" + strings.Repeat("x", i))
		}
		if last == nil || !strings.Contains(last.Error(), "64 others do not answer") {
			t.Errorf("one more is %v", last)
		}
		close(release)
	})
}
