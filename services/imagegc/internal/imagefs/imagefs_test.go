package imagefs

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func mounted(at ...string) func(string) ([]*mountinfo.Info, error) {
	return func(string) ([]*mountinfo.Info, error) {
		var all []*mountinfo.Info
		for _, path := range at {
			all = append(all, &mountinfo.Info{Mountpoint: path})
		}
		return all, nil
	}
}

func TestTheInnermostMountIsAsked(t *testing.T) {
	for _, c := range []struct {
		mounts     []string
		path, want string
	}{
		{[]string{"/"}, "/var/lib/containerd/x", "/"},
		{[]string{"/", "/var", "/var/lib/containerd", "/var/lib"}, "/var/lib/containerd/x", "/var/lib/containerd"},
		{[]string{"/", "/var/lib/contain"}, "/var/lib/containerd", "/"},
		{[]string{"/", "/images"}, "/images", "/images"},
	} {
		asked := ""
		p := &Prober{mounts: mounted(c.mounts...), statfs: func(path string, to *unix.Statfs_t) error {
			asked = path
			*to = unix.Statfs_t{Frsize: 10, Blocks: 100, Bavail: 30}
			return nil
		}}
		u, err := p.Usage(t.Context(), c.path)
		if err != nil || asked != c.want || u != (Usage{1000, 300}) {
			t.Errorf("%s with %q: %s is asked and says %+v, %v; want %s", c.path, c.mounts, asked, u, err, c.want)
		}
	}
}

func TestNonsense(t *testing.T) {
	p := &Prober{mounts: mounted("/"), statfs: func(_ string, to *unix.Statfs_t) error {
		*to = unix.Statfs_t{Frsize: 1, Blocks: 10, Bavail: 20}
		return nil
	}}
	if u, err := p.Usage(t.Context(), "/x"); err != nil || u.Available != 10 {
		t.Errorf("more is available than there is: %+v, %v", u, err)
	}
	for _, path := range []string{"", "relative"} {
		if _, err := p.Usage(t.Context(), path); err == nil || !strings.Contains(err.Error(), "no absolute path") {
			t.Errorf("%q: %v", path, err)
		}
	}
	p.mounts = mounted()
	if _, err := p.Usage(t.Context(), "/x"); err == nil {
		t.Error("no file system: no error")
	}
}

// A file system that hangs holds up its callers for as long as they wait, and costs one thread.
func TestAFileSystemThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, calls := make(chan struct{}), 0
		p := &Prober{mounts: mounted("/"), statfs: func(string, *unix.Statfs_t) error {
			calls++
			<-answer
			return nil
		}}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := p.Usage(ctx, "/x"); err == nil || !strings.Contains(err.Error(), "does not answer") {
				t.Errorf("it answers: %v", err)
			}
			cancel()
		}
		close(answer)
		synctest.Wait()
		if _, err := p.Usage(t.Context(), "/x"); err != nil || calls != 2 {
			t.Errorf("afterwards: %v after %d calls", err, calls)
		}
	})
}

func TestThisMachine(t *testing.T) {
	if u, err := New().Usage(t.Context(), t.TempDir()); err != nil || u.Capacity == 0 {
		t.Errorf("%+v, %v", u, err)
	}
}
