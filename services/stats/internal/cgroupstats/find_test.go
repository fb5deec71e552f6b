package cgroupstats

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/microlet/microlet/services/internal/nodepods"
)

const (
	id1 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	id2 = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
)

func makeFolders(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// The cgroups of pods are found as both drivers and both runtimes name them.
func TestFind(t *testing.T) {
	for _, c := range []struct {
		name, parent string
		folders      []string
		want         []found
	}{
		{
			name: "cgroupfs", parent: "/",
			folders: []string{
				"kubepods/podg/" + id1, "kubepods/burstable/podb-1/" + id2 + "/below/it", "kubepods/besteffort",
				"kubepods/burstable/podb-1/crio-" + id1, "kubepods/burstable/podb-1/crio-conmon-" + id1,
				"kubepods/burstable/podb-1/short", "kubepods/burstable/other", "system.slice/x",
			},
			want: []found{
				{name: "/kubepods", all: true},
				{name: "/kubepods/podg", kind: PodKind, podUID: "g"},
				{name: "/kubepods/podg/" + id1, kind: Container, podUID: "g", id: id1},
				{name: "/kubepods/burstable"},
				{name: "/kubepods/burstable/podb-1", kind: PodKind, podUID: "b-1"},
				{name: "/kubepods/burstable/podb-1/crio-" + id1, kind: Container, podUID: "b-1", id: id1},
				{name: "/kubepods/burstable/podb-1/" + id2, kind: Container, podUID: "b-1", id: id2},
				{name: "/kubepods/besteffort"},
			},
		},
		{
			name: "systemd", parent: "/my.slice",
			folders: []string{
				"my.slice/my-kubepods.slice/my-kubepods-burstable.slice/my-kubepods-burstable-podb_1.slice/cri-containerd-" +
					id1 + ".scope",
				"kubepods/podx",
			},
			want: []found{
				{name: "/my.slice/my-kubepods.slice", all: true},
				{name: "/my.slice/my-kubepods.slice/my-kubepods-burstable.slice"},
				{name: "/my.slice/my-kubepods.slice/my-kubepods-burstable.slice/my-kubepods-burstable-podb_1.slice",
					kind: PodKind, podUID: "b-1"},
				{name: "/my.slice/my-kubepods.slice/my-kubepods-burstable.slice/my-kubepods-burstable-podb_1.slice/" +
					"cri-containerd-" + id1 + ".scope", kind: Container, podUID: "b-1", id: id1},
			},
		},
		{name: "none", parent: "", folders: []string{"system.slice"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			makeFolders(t, root, c.folders...)
			for i := range c.want {
				if c.want[i].kind == Root {
					c.want[i].kind = Slice
				}
			}
			got, err := find(root, c.parent, 100)
			if d := cmp.Diff(c.want, got, cmp.AllowUnexported(found{})); d != "" || err != nil {
				t.Errorf("%v, -want +got\n%s", err, d)
			}
		})
	}
}

func TestFindIsBounded(t *testing.T) {
	root := t.TempDir()
	makeFolders(t, root, "kubepods/pod1/"+id1, "kubepods/pod2/"+id2, "kubepods/burstable/pod3")
	if all, err := find(root, "", 5); err == nil {
		t.Errorf("%d cgroups are read", len(all))
	}
	if all, err := find(root, "", 7); err != nil || len(all) != 7 {
		t.Errorf("%d cgroups are read, %v", len(all), err)
	}
}

// The name of a cgroup does not show whether the UID of a static pod has "-" or "_".
func TestSpellings(t *testing.T) {
	all := spellings(map[string]*nodepods.Pod{"my_pod": nil, "0b4a-17": nil})
	for cgroup, want := range map[string]string{"my-pod": "my_pod", "my_pod": "my_pod", "0b4a-17": "0b4a-17",
		"0b4a_17": "0b4a-17"} {
		if got := all[spelling(cgroup)]; got != want {
			t.Errorf("the cgroup of %s is the pod %q, want %q", cgroup, got, want)
		}
	}
}
