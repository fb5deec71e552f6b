package imagefs

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/microlet/microlet/services/internal/fsusage"
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
		p := &Prober{mounts: mounted(c.mounts...), usage: func(_ context.Context, path string) (fsusage.Usage, error) {
			asked = path
			return fsusage.Usage{Capacity: 1000, Available: 300}, nil
		}}
		u, err := p.Usage(t.Context(), c.path)
		if err != nil || asked != c.want || u != (Usage{1000, 300}) {
			t.Errorf("%s with %q: %s is asked and says %+v, %v; want %s", c.path, c.mounts, asked, u, err, c.want)
		}
	}
}

func TestNonsense(t *testing.T) {
	p := &Prober{mounts: mounted("/"), usage: func(context.Context, string) (fsusage.Usage, error) {
		return fsusage.Usage{Capacity: 10, Available: 20}, nil
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

func TestAFileSystemThatHangs(t *testing.T) {
	p := &Prober{mounts: mounted("/"), usage: func(context.Context, string) (fsusage.Usage, error) {
		return fsusage.Usage{Capacity: 100}, fsusage.ErrHangs
	}}
	if u, err := p.Usage(t.Context(), "/x"); !errors.Is(err, fsusage.ErrHangs) || u != (Usage{}) {
		t.Errorf("it answers %+v, %v", u, err)
	}
}

func TestThisMachine(t *testing.T) {
	if u, err := New().Usage(t.Context(), t.TempDir()); err != nil || u.Capacity == 0 {
		t.Errorf("%+v, %v", u, err)
	}
}
