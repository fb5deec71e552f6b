package filesystem

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
)

func TestPartitions(t *testing.T) {
	mounts := []*mountinfo.Info{
		{Mountpoint: "/proc", FSType: "proc", Source: "proc"},
		{Mountpoint: "/", FSType: "ext4", Source: "/dev/vda1", Major: 254, Minor: 1},
		{Mountpoint: "/srv", FSType: "ext4", Source: "/dev/vda1", Major: 254, Minor: 1}, // a bind mount
		{Mountpoint: "/run", FSType: "tmpfs", Source: "tmpfs", Minor: 20},
		{Mountpoint: "/dev/shm", FSType: "tmpfs", Source: "tmpfs", Minor: 21},
		{Mountpoint: "/mnt", FSType: "nfs4", Source: "server:/export"},
		{Mountpoint: "/fuse", FSType: "fuse.sshfs", Source: "host:"},
		{Mountpoint: "/var/lib/kubelet/pods/u/volumes/x", FSType: "tmpfs", Source: "tmpfs"},
		{Mountpoint: "/run/containerd/x/rootfs", FSType: "overlay", Source: "overlay"},
		{Mountpoint: "/var/lib/kubelet", FSType: "xfs", Source: "/dev/vdb", Major: 254, Minor: 16},
	}
	got := partitions(mounts, []string{"/var/lib/kubelet/pods/", "/var/lib/kubelet"})
	want := []Partition{
		{Device: "/dev/shm", Mountpoint: "/dev/shm", Type: "tmpfs", Minor: 21},
		{Device: "/dev/vda1", Mountpoint: "/", Type: "ext4", Major: 254, Minor: 1},
		{Device: "/dev/vdb", Mountpoint: "/var/lib/kubelet", Type: "xfs", Major: 254, Minor: 16},
		{Device: "/run", Mountpoint: "/run", Type: "tmpfs", Minor: 20},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	root := partitions([]*mountinfo.Info{{Mountpoint: "/", FSType: "overlay", Source: "overlay", Minor: 9}}, nil)
	if len(root) != 1 || root[0].Device != "overlay_0-9" {
		t.Errorf("in a container the root is %+v", root)
	}
}

const disks = ` 254       0 vda 100 1 2000 30 40 5 6000 70 1 80 90 0 0 0 0
 254       1 vda1 10 11 12 13 14 15 16 17 18 19 20
   7       0 loop0 1 1 1 1 1 1 1 1 1 1 1
   8       0 sda 1 2 3
`

func TestDisks(t *testing.T) {
	got, err := parseDisks(disks)
	if err == nil || !strings.Contains(err.Error(), "sda") {
		t.Errorf("a line that is too short is %v", err)
	}
	if d := cmp.Diff(map[string]Traffic{
		"/dev/vda":  {254, 0, 100, 1, 2000, 30, 40, 5, 6000, 70, 1, 80, 90},
		"/dev/vda1": {254, 1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20},
	}, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if _, err := Disks(); err != nil {
		t.Errorf("this machine's: %v", err)
	}
}

func FuzzDisks(f *testing.F) {
	f.Add(disks)
	f.Add("1 2 sda 1 2 3 4 5 6 7 8 9 10 99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseDisks(text)
		for device := range got {
			if !strings.HasPrefix(device, "/dev/") || !strings.Contains(text, strings.TrimPrefix(device, "/dev/")) {
				t.Errorf("%q became disk %q, %v", text, device, err)
			}
		}
	})
}
