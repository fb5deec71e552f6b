package logs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

func TestRemoveTakesOnePodAndItsLinks(t *testing.T) {
	dir := t.TempDir()
	f := Folders{Pods: filepath.Join(dir, "pods"), Links: filepath.Join(dir, "containers")}
	gone := Pod{Namespace: "ns", Name: "a.b", UID: "1"}
	stays := Pod{Namespace: "ns", Name: "a.b", UID: "12"}
	for _, p := range []Pod{gone, stays} {
		log := filepath.Join(f.dir(p), "c", "0.log")
		for _, d := range []string{filepath.Dir(log), f.Links} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(log, filepath.Join(f.Links, "link-"+string(p.UID))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(f.Pods, "not-a-pod"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is gone is removed
		if err := f.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	left, err := f.List()
	if err != nil || !slices.Equal(left, []Pod{stays}) {
		t.Fatalf("left %v, %v", left, err)
	}
	links, err := os.ReadDir(f.Links)
	if err != nil || len(links) != 1 || links[0].Name() != "link-12" {
		t.Fatalf("links left: %v, %v", links, err)
	}
}

// TestRemoveEntersNoMount: what is mounted in a log folder keeps its contents.
func TestRemoveEntersNoMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	f := Folders{Pods: t.TempDir()}
	p := Pod{Namespace: "ns", Name: "a", UID: "1"}
	data, point := t.TempDir(), filepath.Join(f.dir(p), "c")
	if err := errors.Join(os.MkdirAll(point, 0o750),
		os.WriteFile(filepath.Join(data, "precious"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(data, point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })
	if err := f.Remove(p); err == nil || !strings.Contains(err.Error(), point) {
		t.Errorf("%v: it must name the mount point", err)
	}
	if _, err := os.Stat(filepath.Join(data, "precious")); err != nil {
		t.Errorf("what was mounted lost its content: %v", err)
	}
}

func TestListWithoutFolder(t *testing.T) {
	if pods, err := (Folders{Pods: filepath.Join(t.TempDir(), "none")}).List(); err != nil || pods != nil {
		t.Fatalf("%v, %v", pods, err)
	}
}

// folders makes the folders of logs and links, with one of a container's logs.
func folders(t *testing.T, dir string) (f Folders, logs string) {
	t.Helper()
	f = Folders{Pods: filepath.Join(dir, "pods"), Links: filepath.Join(dir, "containers")}
	logs = filepath.Join(f.Pods, "ns_a_1", "c")
	for _, d := range []string{logs, f.Links} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f, logs
}

func TestRemoveContainerTakesOneLog(t *testing.T) {
	dir := t.TempDir()
	f, logs := folders(t, dir)
	for _, name := range []string{"0.log", "1.log"} {
		if err := os.WriteFile(filepath.Join(logs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(logs, name), filepath.Join(f.Links, "link-"+name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // what is gone is removed
		if err := f.RemoveContainer(filepath.Join(logs, "0.log")); err != nil {
			t.Fatal(err)
		}
	}
	if links, err := os.ReadDir(f.Links); err != nil || len(links) != 1 || links[0].Name() != "link-1.log" {
		t.Fatalf("links left: %v, %v", links, err)
	}
	if left, err := os.ReadDir(logs); err != nil || len(left) != 1 || left[0].Name() != "1.log" {
		t.Fatalf("logs left: %v, %v", left, err)
	}
	for _, foreign := range []string{"/etc/passwd", filepath.Join(dir, "x.log"), f.Pods + "/../x.log"} {
		if err := f.RemoveContainer(foreign); err == nil {
			t.Errorf("%s was taken for a log", foreign)
		}
	}
}

// TestAFolderInThePlaceOfALog stays, and keeps no container: it goes with the pod's folder.
func TestAFolderInThePlaceOfALog(t *testing.T) {
	f, logs := folders(t, t.TempDir())
	for _, name := range []string{"0.log", "0.log.1", "0.log.2"} {
		if err := os.Mkdir(filepath.Join(logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(logs, "0.log.3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.RemoveContainer(filepath.Join(logs, "0.log")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(logs, "0.log.3")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log beside it is still there: %v", err)
	}
}

// aGroup is one that this process may give away.
func aGroup() int {
	if os.Getgid() == 0 {
		return role.GroupLogs
	}
	return os.Getgid()
}

func owned(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if gid := int(info.Sys().(*syscall.Stat_t).Gid); gid != aGroup() || info.Mode()&^os.ModeDir != mode {
		t.Errorf("%s: group %d, mode %v; want %d, %v", path, gid, info.Mode(), aGroup(), mode)
	}
}

func TestFoldersBelongToTheGroup(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		for _, path := range []string{"pod", "pod/container"} {
			if err := MakeFolder(dir, path, aGroup()); err != nil {
				t.Fatal(err)
			}
			owned(t, filepath.Join(dir, path), 0o750|os.ModeSetgid)
		}
	}
	if err := MakeFolder(dir, "open", 0); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "open")); err != nil || info.Mode() != os.ModeDir|0o755 {
		t.Errorf("without a group: %v, %v", info.Mode(), err)
	}
}

// TestFoldersAreMadeBehindNoLink: a pod that may write to the folder of logs, such as a log collector, puts a link
// where a folder will be made, or in the place of the folder above.
func TestFoldersAreMadeBehindNoLink(t *testing.T) {
	dir, pods := t.TempDir(), t.TempDir()
	mode := func(path string) os.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode()
	}
	folder, file := filepath.Join(dir, "folder"), filepath.Join(dir, "file")
	err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(file, nil, 0o600),
		os.Mkdir(filepath.Join(pods, "pod"), 0o750),
		os.Symlink(folder, filepath.Join(pods, "pod", "folder")), os.Symlink(file, filepath.Join(pods, "pod", "file")),
		os.Symlink(dir, filepath.Join(pods, "link")), os.Symlink("none", filepath.Join(pods, "pod", "dangling")))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"link", "link/folder", "link/file", "link/new", "pod/folder", "pod/file", "pod/dangling", "../new",
	} {
		for _, group := range []int{0, aGroup()} {
			if err := MakeFolder(pods, path, group); err == nil {
				t.Errorf("%s was made", path)
			}
		}
	}
	if mode(folder) != os.ModeDir|0o700 || mode(file) != 0o600 {
		t.Errorf("where links lead: a folder has mode %v, a file %v", mode(folder), mode(file))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("made where a link leads: %v, %v", entries, err)
	}
}

func TestAdoptBringsFoldersAndLogsInLine(t *testing.T) {
	f := Folders{Pods: filepath.Join(proctest.TempDir(t, 0o755), "pods"), Group: aGroup()}
	pod := filepath.Join(f.Pods, "ns_a_1")
	logs := filepath.Join(pod, "c")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(logs, "0.log")
	if err := os.WriteFile(log, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(logs, "1.log")); err != nil {
		t.Fatal(err)
	}
	if err := f.Adopt(); err != nil {
		t.Fatal(err)
	}
	owned(t, pod, 0o750|os.ModeSetgid)
	owned(t, logs, 0o750|os.ModeSetgid)
	owned(t, log, 0o640)
	if after, err := os.Stat(secret); err != nil ||
		after.Sys().(*syscall.Stat_t).Gid != before.Sys().(*syscall.Stat_t).Gid {
		t.Error("a link led out of the folders")
	}
	next := filepath.Join(logs, "2.log")
	if err := os.WriteFile(next, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	owned(t, next, 0o640) // what is made in it later
	if err := (Folders{Pods: filepath.Join(f.Pods, "none"), Group: 1}).Adopt(); err != nil {
		t.Error(err)
	}
}

func TestDeadLinks(t *testing.T) {
	dir := t.TempDir()
	f, logs := folders(t, dir)
	if err := os.WriteFile(filepath.Join(logs, "1.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"a_ns_c-11.log": filepath.Join(logs, "0.log"), // dead
		"a_ns_c-22.log": filepath.Join(logs, "2.log"), // being rotated
		"a_ns_c-33.log": filepath.Join(logs, "1.log"), // there
		"a_ns_c-44.txt": filepath.Join(logs, "4.log"), // not a log's
		"a_ns_c-55.log": filepath.Join(dir, "5.log"),  // of another program
	} {
		if err := os.Symlink(target, filepath.Join(f.Links, link)); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := f.RemoveDeadLinks(func(id string) bool { return id == "22" })
	if err != nil || removed != 1 {
		t.Errorf("removed %d, %v", removed, err)
	}
	if _, err := os.Lstat(filepath.Join(f.Links, "a_ns_c-11.log")); !os.IsNotExist(err) {
		t.Errorf("the dead link is still there: %v", err)
	}
}

func TestNextRestartCount(t *testing.T) {
	f := Folders{Pods: t.TempDir()}
	p := Pod{Namespace: "ns", Name: "web", UID: "1"}
	if got := f.NextRestartCount(p, "main"); got != 0 {
		t.Errorf("%d without logs", got)
	}
	dir := filepath.Join(f.Pods, "ns_web_1", "main")
	if err := os.MkdirAll(filepath.Join(dir, "9.log"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0.log", "3.log", "4.log.20260101-1.gz", "x.log", "99999999999.log", "6.logs"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.NextRestartCount(p, "main"); got != 5 {
		t.Errorf("%d, want 5", got)
	}
}

// TestLogsBehindALinkAreNotTouched: a pod that may write to the folder of all logs puts a link in the place of a
// folder.
func TestLogsBehindALinkAreNotTouched(t *testing.T) {
	for what, replaced := range map[string]string{"the container's folder": "ns_a_1/c", "the pod's folder": "ns_a_1"} {
		t.Run(what, func(t *testing.T) {
			f, logs := folders(t, t.TempDir())
			outside := t.TempDir()
			path, err := filepath.Rel(filepath.Join(f.Pods, replaced), logs)
			if err != nil {
				t.Fatal(err)
			}
			theirs := filepath.Join(outside, path)
			if err := errors.Join(os.MkdirAll(theirs, 0o755), os.WriteFile(filepath.Join(theirs, "7.log"), nil, 0o600),
				os.WriteFile(filepath.Join(theirs, "7.log.1"), nil, 0o600), os.RemoveAll(filepath.Join(f.Pods, replaced)),
				os.Symlink(outside, filepath.Join(f.Pods, replaced)),
				os.Symlink(filepath.Join(logs, "7.log"), filepath.Join(f.Links, "a_ns_c-id.log"))); err != nil {
				t.Fatal(err)
			}
			p := Pod{Namespace: "ns", Name: "a", UID: "1"}
			if got := f.NextRestartCount(p, "c"); got != 0 {
				t.Errorf("the restart count is %d, by logs behind a link", got)
			}
			if err := f.RemoveContainer(filepath.Join(logs, "7.log")); err == nil {
				t.Error("a log behind a link was removed")
			}
			if removed, err := f.RemoveDeadLinks(func(string) bool { return false }); err != nil || removed != 0 {
				t.Errorf("%d links removed, %v: what leads out of the logs says nothing of them", removed, err)
			}
			if there, err := Exists(f.Pods, filepath.Join(logs, "7.log")); err == nil {
				t.Errorf("a log behind a link is there: %v", there)
			}
			if err := f.Remove(p); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(theirs); err != nil || len(left) != 2 {
				t.Errorf("left behind the link: %v, %v", left, err)
			}
		})
	}
}
