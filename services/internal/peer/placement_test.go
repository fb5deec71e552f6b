package peer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/notregular"
	"github.com/microlet/microlet/services/internal/testing/peertest"
)

// placed writes a placement, and returns its file.
func placed(t *testing.T, p Placement) string {
	t.Helper()
	data, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder(t), "placement")
	if err := os.WriteFile(path, data, 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPlacedPeers: the user of a process has the roles of its services, and no user has those of another process. Who
// becomes the user of a service that shares another one's process is a stranger.
func TestPlacedPeers(t *testing.T) {
	file := placed(t, Placement{47102: {role.PLEG, role.Prober}, 47104: {}})
	for _, c := range []struct {
		uid    int
		cgroup string
		helper role.Role
		want   []role.Role
	}{
		{uid: 47102, want: []role.Role{role.PLEG, role.Prober}},
		{uid: 47104},
		{uid: 47105, want: []role.Role{role.ImageGC}},
		{uid: 0, want: []role.Role{role.Podsync, role.Up}},
		{uid: 12345},
		{uid: 47102, cgroup: "kubepods/pod" + podUID + "/c"},
		// A helper has its own role alone, also as the user of the process that has others too.
		{uid: 47102, cgroup: "kubepods/pod" + podUID + "/c", helper: role.Prober, want: []role.Role{role.Prober}},
		{uid: 47104, cgroup: "kubepods/pod" + podUID + "/c", helper: role.Prober},
	} {
		l, path := listen(t)
		o := peertest.Options{UID: c.uid}
		if c.cgroup != "" {
			o.Cgroups = peertest.Cgroup(t, c.cgroup)
		}
		helpers := Helpers{Dir: filepath.Join(folder(t), "helpers")}
		if c.helper != "" {
			if err := helpers.Record(podUID, c.helper); err != nil {
				t.Fatal(err)
			}
		}
		// The mode of the socket is not what is tested.
		if err := errors.Join(os.Chmod(path, 0o777), os.Chmod(filepath.Dir(path), 0o777)); err != nil {
			t.Fatal(err)
		}
		if line := peertest.Start(t, o, "connect", path).Line(t); !strings.HasSuffix(line, "<nil>") {
			t.Fatal(line)
		}
		got, err := Identify(accept(t, l), Rules{Placement: file, Helpers: helpers.Dir})
		if err != nil || !slices.Equal(got.Roles, c.want) {
			t.Errorf("uid %d in %q: %s (%v), want the roles %v", c.uid, c.cgroup, got, err, c.want)
		}
	}
}

// TestBadPlacement: no peer has a role by a file that says nothing certain.
func TestBadPlacement(t *testing.T) {
	path := filepath.Join(folder(t), "placement")
	for text, want := range map[string]string{
		"":                         "unexpected end",
		"{":                        "unexpected end",
		`{"47101":["bus","root"]}`: `unknown role "root"`,
		`{"bus":["bus"]}`:          "bus",
		`{"47101":"bus"}`:          "cannot unmarshal",
	} {
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		rules := Rules{Placement: path}
		roles, err := rules.rolesOf(47101)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, %v lacks %q", text, roles, err, want)
		}
	}
	if p, err := ReadPlacement(path + ".absent"); p != nil || err != nil {
		t.Errorf("no file is %v, %v", p, err)
	}
	notregular.Each(t, path, func(t *testing.T) {
		if p, err := ReadPlacement(path); err == nil {
			t.Errorf("it is %v", p)
		}
	})
}
