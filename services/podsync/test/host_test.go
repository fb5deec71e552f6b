package test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/samemount"
)

// TestIPTablesChains: podsync keeps the kubelet's chains unless makeIPTablesUtilChains is false.
func TestIPTablesChains(t *testing.T) {
	n := newNode(t)
	runtime.LockOSThread() // and never unlocked: what this thread starts is in its network, which ends with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("needs root and a network namespace: %v", err)
	}
	chains := func() string {
		out, err := exec.Command("iptables-save").CombinedOutput()
		if err != nil {
			t.Fatalf("needs iptables: %v: %s", err, out)
		}
		return string(out)
	}
	n.put("a")
	without := n.start()
	n.runs("a")
	without.Signal(unix.SIGTERM)
	if err := without.End(soon); err != nil {
		t.Error(err)
	}
	if got := chains(); strings.Contains(got, "KUBE-") {
		t.Errorf("with makeIPTablesUtilChains: false:\n%s", got)
	}
	n.start("--make-iptables-util-chains=true").Await(soon, "the chains are in place", func() bool {
		got := chains()
		return strings.Contains(got, "block incoming localnet connections") &&
			strings.Contains(got, "KUBE-IPTABLES-HINT")
	})
}

// TestRootDirIsShared: mounts of volumes reach containers and come back from them, on any host.
func TestRootDirIsShared(t *testing.T) {
	n := newNode(t)
	n.put("a")
	for range 2 { // and a restart changes nothing
		p := n.start()
		n.runs("a")
		dir, err := os.Open(n.root)
		if err != nil {
			t.Fatal(err)
		}
		id, err := samemount.MountID(int(dir.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
		mounts, err := mount.ParseMountInfo("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, m := range mounts {
			if m.ID == id && !strings.Contains(strings.Join(m.OptionalFields, " "), "shared:") {
				t.Errorf("the mount of the root folder is not shared: %+v", m)
			}
			if m.MountPoint == n.root {
				at++
			}
		}
		if at > 1 {
			t.Errorf("the root folder was bound %d times", at)
		}
		p.Kill()
	}
}
