package logs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// readAsNodeAPI reads a file as the process that serves kubectl logs does, with its user and groups.
func readAsNodeAPI(t *testing.T, file string) (string, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it gives folders to groups and reads as another user")
	}
	id, err := role.Get(role.NodeAPI)
	if err != nil {
		t.Fatal(err)
	}
	groups := make([]uint32, 0, len(id.Groups))
	for _, g := range id.Groups {
		groups = append(groups, uint32(g))
	}
	cat := exec.Command("cat", file)
	cat.Dir = "/"
	cat.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID), Groups: groups},
	}
	out, err := cat.CombinedOutput()
	return string(out), err
}

// kubeletsLog makes a log as a kubelet 1.37 and a runtime leave it: folders of root's alone.
func kubeletsLog(t *testing.T, pods string) string {
	t.Helper()
	dir := filepath.Join(pods, "ns_a_1", "c")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "0.log")
	if err := os.WriteFile(file, []byte("line"), 0o640); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAdoptLetsNodeAPIReadAKubeletsLogs(t *testing.T) {
	for name, below := range map[string]string{"default": "pods", "folders above": "kubernetes/logs/pods"} {
		t.Run(name, func(t *testing.T) {
			dir := proctest.TempDir(t, 0o755)
			f := Folders{
				Pods:  filepath.Join(dir, below),
				Links: filepath.Join(dir, "containers"),
				Group: role.GroupLogs,
			}
			if err := errors.Join(os.MkdirAll(f.Pods, 0o750), os.Mkdir(f.Links, 0o700)); err != nil {
				t.Fatal(err)
			}
			log := kubeletsLog(t, f.Pods)
			link := filepath.Join(f.Links, "a_ns_c-1.log")
			if err := os.Symlink(log, link); err != nil {
				t.Fatal(err)
			}
			if got, err := readAsNodeAPI(t, log); err == nil {
				t.Fatalf("read %q before anything was adopted: the test shows nothing", got)
			}
			for range 2 {
				if err := errors.Join(f.Make(), f.Adopt()); err != nil {
					t.Fatal(err)
				}
				for _, path := range []string{log, link} {
					if got, err := readAsNodeAPI(t, path); err != nil || got != "line" {
						t.Errorf("%s: %v: %s", path, err, got)
					}
				}
			}
			info, err := os.Stat(f.Pods)
			if err != nil || info.Mode().Perm() != 0o750 {
				t.Errorf("%v, %v: who is not of the group need not pass", info.Mode(), err)
			}
		})
	}
}

// TestAdoptLeavesOthersFolders: what is open stays as it is, and what is closed and not an agent's is named.
func TestAdoptLeavesOthersFolders(t *testing.T) {
	dir := proctest.TempDir(t, 0o755)
	others := filepath.Join(dir, "others")
	f := Folders{Pods: filepath.Join(others, "pods"), Group: role.GroupLogs}
	log := kubeletsLog(t, f.Pods)
	attributes := func(path string) (os.FileMode, uint32) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Gid
	}
	for _, test := range []struct {
		mode  os.FileMode
		gid   int
		reads bool
		want  string
	}{
		{0o755, 0, true, ""},
		{0o711, 4, true, ""},
		{0o700, 0, false, "chmod o+x " + others},
		{0o750, 4, false, ""}, // the group's members may read
	} {
		if err := errors.Join(os.Chmod(others, test.mode), os.Lchown(others, -1, test.gid)); err != nil {
			t.Fatal(err)
		}
		err := f.Adopt()
		if test.want == "" && err != nil ||
			test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%04o: %v, want %q", test.mode, err, test.want)
		}
		if mode, gid := attributes(others); mode != test.mode || gid != uint32(test.gid) {
			t.Errorf("%04o, group %d was changed to %04o, group %d", test.mode, test.gid, mode, gid)
		}
		if _, err := readAsNodeAPI(t, log); (err == nil) != test.reads {
			t.Errorf("%04o: read with %v", test.mode, err)
		}
	}
	for _, system := range []string{"/", "/var", "/var/log", "/data"} {
		if agentsOwn(system) {
			t.Errorf("%s was taken for a folder that an agent made", system)
		}
	}
}

func TestMakeForTheGroup(t *testing.T) {
	dir := proctest.TempDir(t, 0o755)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	f := Folders{Pods: filepath.Join(dir, "logs", "pods"), Links: filepath.Join(dir, "links"), Group: role.GroupLogs}
	for range 2 {
		if err := f.Make(); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]struct {
		mode os.FileMode
		gid  uint32
	}{f.Pods: {0o750, role.GroupLogs}, filepath.Dir(f.Pods): {0o750, role.GroupLogs}, f.Links: {0o755, 0}} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode().Perm() != want.mode || gid != want.gid {
			t.Errorf("%s: %v, group %d; want %04o, group %d", path, info.Mode(), gid, want.mode, want.gid)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Folders{Pods: file}).Make(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v: it must name the file in the way", err)
	}
}
