package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/testing/linktest"
)

// Nothing is made or bound in the node agent's own folder, by whatever name a pod calls it; a helper may.
func TestNothingOfTheNodeAgentsFolder(t *testing.T) {
	s := newScene(t)
	own, link := filepath.Join(s.outside, "run"), filepath.Join(s.outside, "link")
	if err := errors.Join(os.Mkdir(own, 0o750), os.Symlink(own, link),
		os.WriteFile(filepath.Join(own, "socket"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	helper := podWith()
	helper.Name = "helper"
	s.m.opts.Private = func(p *v1.Pod) string {
		if p.Name == helper.Name {
			return ""
		}
		return own
	}
	s.m.nodes.private = s.m.opts.Private
	for _, path := range []string{
		filepath.Join(own, "made"), filepath.Join(link, "made"), filepath.Join("/proc/self/root", own, "made"),
		own + "/made/below", link,
	} {
		for _, kind := range []v1.HostPathType{
			v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathFileOrCreate,
		} {
			volume := volumeOf("v", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}})
			_, err := s.m.nodes.SetUp(t.Context(), &Spec{Pod: podWith(volume), Volume: &volume})
			if err == nil || !strings.Contains(err.Error(), "node agent's own folder") {
				t.Errorf("%s as %s: %v", path, kind, err)
			}
		}
	}
	s.volume = s.outside
	for _, path := range []string{"run/made", "run/socket", "link/made", "run"} {
		if target, err := s.bind(t, path, 0); err == nil {
			t.Errorf("subPath %s is bound at %s", path, target)
		}
	}
	if _, err := os.Lstat(filepath.Join(own, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made there: %v", err)
	}
	if _, err := s.bind(t, "beside", 0); err != nil {
		t.Errorf("what lies beside it: %v", err)
	}
	if _, err := s.m.SubPath(t.Context(),
		SubPath{Pod: helper, Volume: "v", Container: "c", Index: 1, Root: s.outside, Path: "run/made"}); err != nil {
		t.Errorf("a helper: %v", err)
	}
}

// TestALinkThatIsExchanged: while links on the way are exchanged, root makes and binds nothing in the node agent's
// folder.
func TestALinkThatIsExchanged(t *testing.T) {
	s := newScene(t)
	own := filepath.Join(s.outside, "run")
	harmless, tenants := filepath.Join(s.outside, "harmless"), filepath.Join(s.outside, "tenants")
	link, other := filepath.Join(tenants, "link"), filepath.Join(tenants, "other")
	if err := errors.Join(os.Mkdir(own, 0o755), os.Mkdir(harmless, 0o755), os.Mkdir(tenants, 0o755),
		os.WriteFile(filepath.Join(own, "socket"), []byte("own"), 0o644), os.Symlink(harmless, link),
		os.WriteFile(filepath.Join(harmless, "socket"), []byte("harmless"), 0o644), os.Symlink(own, other)); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(s.volume, "target")
	stop := sync.OnceFunc(linktest.Race(link, other))
	defer stop()
	for i := range 1000 {
		for kind, name := range map[v1.HostPathType]string{
			v1.HostPathFileOrCreate: "file", v1.HostPathDirectoryOrCreate: "folder/below",
		} {
			c := hostPathCall{Path: filepath.Join(link, fmt.Sprint(i)+name), Type: kind, Private: own}
			_, _ = c.do() // it loses the race, or the file is in the other folder
		}
		made := subPathCall{Volume: s.outside, Path: fmt.Sprintf("tenants/link/%dsub", i), Target: target, Private: own}
		_, _ = made.do()
		bound := subPathCall{Volume: s.outside, Path: "tenants/link/socket", Target: target, Private: own}
		if _, err := bound.do(); err == nil && read(t, target) != "harmless" {
			t.Fatal("something of the node agent's folder is bound")
		}
	}
	stop()
	if err := mountPointFor(target, false); err != nil {
		t.Error(err)
	}
	if made, err := os.ReadDir(own); err != nil || len(made) != 1 {
		t.Errorf("made in the node agent's folder: %v, %v", made, err)
	}
}

// TestHostPathsBehindLinks: the links of the node itself lead on, such as /var/run.
func TestHostPathsBehindLinks(t *testing.T) {
	m, _ := manager(t, &api{})
	own, dir := t.TempDir(), t.TempDir()
	m.nodes.private = func(*v1.Pod) string { return own }
	in := func(path string) string { return filepath.Join(dir, path) }
	if err := errors.Join(os.MkdirAll(in("run/deep"), 0o755), os.Symlink("run", in("relative")),
		os.Symlink(in("run/deep"), in("absolute")), os.Symlink("absolute", in("twice")),
		os.WriteFile(in("run/file"), nil, 0o600), os.Symlink("run/file", in("file")),
		os.Symlink("none", in("nowhere"))); err != nil {
		t.Fatal(err)
	}
	const folder, file = v1.HostPathDirectoryOrCreate, v1.HostPathFileOrCreate
	for _, test := range []struct {
		path string
		kind v1.HostPathType
		made string // empty if it cannot be made
	}{
		{"relative", folder, "run"},
		{"relative/a/b", folder, "run/a/b"},
		{"twice/a/b", folder, "run/deep/a/b"},
		{"absolute/f", file, "run/deep/f"},
		{"file", file, "run/file"},
		{filepath.Join("/proc/self/root", dir, "relative/c"), folder, "run/c"},
		{"absolute/none/f", file, ""},
		{"nowhere", folder, ""},
		{"nowhere/f", file, ""},
		{"nowhere", file, ""},
		{"file/f", folder, ""},
	} {
		path := test.path
		if !filepath.IsAbs(path) {
			path = in(path)
		}
		p := podWith(volumeOf("v", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &test.kind}}))
		_, err := m.Mount(t.Context(), p)
		m.nodes.forget(p.UID)
		if (err == nil) != (test.made != "") {
			t.Errorf("%s as %s: %v", path, test.kind, err)
			continue
		}
		if info, err := os.Lstat(in(test.made)); err != nil || info.IsDir() != (test.kind == folder || test.made == "") {
			t.Errorf("%s as %s: %v, %v", path, test.kind, info, err)
		}
	}
	if _, err := os.Lstat(in("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made behind a link to nowhere: %v", err)
	}
	// Its folders have the mode of the kubelet's.
	if info, err := os.Stat(in("run/a/b")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestHostPathsThatHang: one without a type is left to the runtime.
func TestHostPathsThatHang(t *testing.T) {
	m := NewManager(ManagerOptions{
		RootDir: t.TempDir(), Tokens: noTokens{}, Mounter: mount.New(""), Foreign: &asked{},
		Private: func(*v1.Pod) string { return "/run/own" },
	})
	for kind, hangs := range map[v1.HostPathType]bool{v1.HostPathUnset: false, v1.HostPathDirectory: true} {
		p := podWith(volumeOf("v", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/away", Type: &kind}}))
		if _, err := m.Mount(t.Context(), p); (err != nil) != hangs {
			t.Errorf("type %q: %v", kind, err)
		}
		m.nodes.forget(p.UID)
	}
}
