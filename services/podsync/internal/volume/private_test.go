package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
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
		for _, kind := range []v1.HostPathType{v1.HostPathDirectoryOrCreate, v1.HostPathFileOrCreate} {
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
