package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/childprocess"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// nfsProgram stands in for mount(8) of an export, and is executed as that would be. It keeps what it is called with,
// and mounts a tmpfs there. An export that is called "refused" it refuses, one that is called "late" it mounts and then
// fails, and instead of one that is called "another" or "folder" it mounts something else.
const nfsProgram = `#!/bin/sh
echo "$*" >>%[1]s
while [ "$1" != -- ]; do shift; done
source=$2 last=$3
case "$*" in
*refused*) echo "mount.nfs: access denied by server while mounting" >&2; exit 32;;
*nothing*) exit 0;;
*another*) source=fs:/else;;
*folder*) mount --rbind %[2]s "$last"; exit;;
esac
mount -t tmpfs "$source" "$last" || exit
case "$*" in
*late*) exit 32;;
esac
`

// hanging is a program whose mount(8) waits for a server that is away. It keeps the numbers of its processes.
var hanging = func() *childprocess.Program {
	p := childpool.Program("microlet-mounter", func() childpool.Table {
		program := os.Getenv("MICROLET_TEST_NFS") + ".sh"
		text := "#!/bin/sh\necho $$ >>" + os.Getenv("MICROLET_TEST_NFS") + "\nexec sleep 1000\n"
		if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
			panic(err)
		}
		return (&kernel{mounter: listing, mount: program, unmount: unmount}).operations()
	})
	p.Name = "microlet-test-nfs"
	return p
}()

// nfsKernel mounts exports with nfsProgram. calls returns how it was called.
func nfsKernel(t *testing.T) (table childpool.Table, calls func() []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir := t.TempDir()
	log, program := filepath.Join(dir, "calls"), filepath.Join(dir, "mount")
	writeNFSProgram(t, program, log)
	k := &kernel{mounter: listing, mount: program, unmount: unmount}
	return k.operations(), func() []string {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	}
}

// writeNFSProgram writes nfsProgram. The folder that it mounts for "folder" has something mounted in it.
func writeNFSProgram(t *testing.T, program, log string) {
	t.Helper()
	folder := t.TempDir()
	inner := filepath.Join(folder, "inner")
	if err := errors.Join(os.Mkdir(inner, 0o700), unix.Mount("tmpfs", inner, "tmpfs", 0, ""),
		os.WriteFile(program, fmt.Appendf(nil, nfsProgram, log, folder), 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(inner, 0); err != nil {
			t.Error(err)
		}
	})
}

// servers lists each tmpfs with the name of an export as the kernel would list the export.
type servers struct{ mount.Interface }

func listing() mount.Interface { return servers{mount.New("")} }

func (s servers) List() ([]mount.MountPoint, error) {
	all, err := s.Interface.List()
	for i := range all {
		if m := &all[i]; m.Type == "tmpfs" && strings.Contains(m.Device, ":/") {
			m.Type = "nfs4"
		}
	}
	return all, err
}

func nfsManager(t *testing.T, root, boot string, table childpool.Table, c Claims) *Manager {
	t.Helper()
	a := &api{}
	return NewManager(ManagerOptions{
		RootDir: root, Objects: a, Tokens: a, Claims: c, Mounter: mount.New(""), Foreign: table, BootID: boot,
	})
}

// user is a pod whose container mounts its volume.
func user(source v1.VolumeSource) *v1.Pod {
	p := podWith(volumeOf("data", source))
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

func TestNFSOfAPod(t *testing.T) {
	table, calls := nfsKernel(t)
	root := t.TempDir()
	m := nfsManager(t, root, "boot", table, nil)
	p := user(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/export", ReadOnly: true}})
	group := int64(4242)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	if _, ok := m.Existing(p); ok {
		t.Error("found before it was set up")
	}
	mounted, err := m.Mount(t.Context(), p)
	dir := filepath.Join(root, "pods/u1/volumes/kubernetes.io~nfs/data")
	if got := mounted["data"]; err != nil || got != (Mounted{HostPath: dir, ReadOnly: true}) {
		t.Fatalf("%+v, %v", got, err)
	}
	want := "-t nfs -o ro -- [fd00::1]:/export " + dir
	if got := calls(); len(got) != 1 || got[0] != want {
		t.Errorf("mounted with %q", got)
	}
	if info, err := os.Stat(dir); err != nil || info.Sys().(*syscall.Stat_t).Gid == uint32(group) {
		t.Errorf("the export is given to the pod's group: %v", err)
	}

	// After a restart of podsync nothing is touched, nor is what a kubelet has mounted, of which there is no note.
	if _, ok := nfsManager(t, root, "boot", table, nil).Existing(p); !ok {
		t.Error("not found after a restart")
	}
	again := nfsManager(t, root, "another boot", table, nil)
	if _, ok := again.Existing(p); ok {
		t.Error("a mount of another boot is taken for one of this")
	}
	if _, err := again.Mount(t.Context(), p); err != nil || len(calls()) != 1 {
		t.Errorf("mounted over what is mounted: %q, %v", calls(), err)
	}
	if err := again.Unmount(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "pods/u1")); !os.IsNotExist(err) {
		t.Errorf("the pod's folder: %v", err)
	}
}

func TestNFSThatIsClaimed(t *testing.T) {
	table, calls := nfsKernel(t)
	root := t.TempDir()
	pv := persistentVolume("pv-1", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "fs", Path: "/export"}})
	pv.Spec.MountOptions = []string{"nfsvers=4.2", "", "hard", "hard"}
	m := nfsManager(t, root, "boot", table, &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}})
	mounted, err := m.Mount(t.Context(), claimant("u1", true))
	dir := filepath.Join(root, "pods/u1/volumes/kubernetes.io~nfs/pv-1")
	if got := mounted["data"]; err != nil || got != (Mounted{HostPath: dir, ReadOnly: true}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := calls(); len(got) != 1 || got[0] != "-t nfs -o hard,nfsvers=4.2,ro -- fs:/export "+dir {
		t.Errorf("mounted with %q", got)
	}
	if err := m.Unmount(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}

// TestMounterOfNFS: a node may have a program of its own that mounts exports, those of claims too.
func TestMounterOfNFS(t *testing.T) {
	table, calls := nfsKernel(t)
	dir := t.TempDir()
	log, program := filepath.Join(dir, "calls"), filepath.Join(dir, "mounter")
	writeNFSProgram(t, program, log)
	export := &v1.NFSVolumeSource{Server: "fs", Path: "/export"}
	pv := persistentVolume("pv-1", v1.PersistentVolumeSource{NFS: export})
	m := NewManager(ManagerOptions{
		RootDir: t.TempDir(), Objects: &api{}, Tokens: &api{}, Mounter: mount.New(""), Foreign: table, BootID: "boot",
		Claims: &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}}, NFSMounter: program,
	})
	for _, p := range []*v1.Pod{user(v1.VolumeSource{NFS: export}), claimant("u2", false)} {
		if _, err := m.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := m.Unmount(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil || strings.Count(string(text), "mount -t nfs -- fs:/export ") != 2 || len(calls()) != 0 {
		t.Errorf("mounted with %q, %v; by the default program: %q", text, err, calls())
	}
}

func TestNFSThatCannotBeMounted(t *testing.T) {
	table, calls := nfsKernel(t)
	for _, export := range []string{"/refused", "/late"} {
		root := t.TempDir()
		m := nfsManager(t, root, "boot", table, nil)
		p := user(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fs", Path: export}})
		for range 2 {
			_, err := m.Mount(t.Context(), p)
			if err == nil || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "data" : mount failed: `) ||
				export == "/refused" && !strings.Contains(err.Error(), "access denied by server") {
				t.Errorf("%s: %v", export, err)
			}
			// Nothing is left, as with the kubelet: a container must not get the folder below.
			if _, err := os.Stat(filepath.Join(root, "pods/u1/volumes/kubernetes.io~nfs/data")); !os.IsNotExist(err) {
				t.Errorf("%s: the folder: %v", export, err)
			}
		}
	}
	if got := calls(); len(got) != 4 {
		t.Errorf("mounted with %q", got)
	}
}

// TestWhatIsMountedIsTheExport: anything else is unmounted, also if another process has mounted it.
func TestWhatIsMountedIsTheExport(t *testing.T) {
	table, calls := nfsKernel(t)
	root := t.TempDir()
	for export, want := range map[string]string{
		"/another": `"fs:/else" of type nfs4 is mounted instead of fs:/another: name the export as its server does`,
		"/folder":  `is mounted instead of fs:/folder: name the export as its server does`,
		"/nothing": `nothing of fs:/nothing is mounted`,
	} {
		m := nfsManager(t, root, "boot", table, nil)
		p := user(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fs", Path: export}})
		dir := filepath.Join(root, "pods/u1/volumes/kubernetes.io~nfs/data")
		if _, err := m.Mount(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", export, err, want)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: the folder: %v", export, err)
		}
		// A call that was killed has left something else there.
		if err := errors.Join(os.MkdirAll(dir, 0o750), unix.Mount("none", dir, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		p.Spec.Volumes[0].NFS.Path = "/export"
		want = `"none" of type tmpfs is mounted instead of fs:/export`
		if _, err := m.Mount(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := m.Mount(t.Context(), p); err != nil {
			t.Error(err)
		}
		if err := m.Unmount(t.Context(), "u1"); err != nil {
			t.Error(err)
		}
	}
	if got := calls(); len(got) != 6 {
		t.Errorf("mounted with %q", got)
	}
}

// TestNamesOfSources: a child mounts, checks and grows nothing whose name begins with a dash, and makes no file system
// of a kind that is a path.
func TestNamesOfSources(t *testing.T) {
	table := Operations()
	for _, do := range []func() error{
		func() error {
			_, err := mountNFS.Do(t.Context(), table, "x", nfsCall{Export: "-fs:/export", Dir: t.TempDir()})
			return err
		},
		func() error {
			_, err := mountLocal.Do(t.Context(), table, "x", localCall{Path: "-disk", FSType: "ext4"})
			return err
		},
		func() error {
			_, err := mountLocal.Do(t.Context(), table, "x", localCall{Path: "/dev/null", FSType: "-ext4"})
			return err
		},
		func() error {
			_, err := growLocal.Do(t.Context(), table, "x", growCall{Source: "-disk"})
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "must not begin with '-'") {
			t.Error(err)
		}
	}
	_, err := mountLocal.Do(t.Context(), table, "x", localCall{Path: "/dev/null", FSType: "../ext4"})
	if err == nil || !strings.Contains(err.Error(), `local.fsType "../ext4" must be the name of a file system`) {
		t.Error(err)
	}
}

// TestNFSServerThatHangs: a mount that is given up is given up with the program that waits for the server.
func TestNFSServerThatHangs(t *testing.T) {
	log := filepath.Join(t.TempDir(), "calls")
	hanging.Env = append(hanging.Env, "MICROLET_TEST_NFS="+log)
	pool := childpool.New(childpool.Options{Program: hanging})
	m := NewManager(ManagerOptions{RootDir: t.TempDir(), Tokens: noTokens{}, Mounter: mount.New(""), Foreign: pool})
	p := user(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fs", Path: "/export"}})
	for tries := 1; tries <= 2; tries++ {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := m.Mount(ctx, p)
			result <- err
		}()
		var pids []string
		proctest.Await(t, time.Minute, "mount(8)", func() bool {
			text, _ := os.ReadFile(log) // it appears with the first one
			pids = strings.Fields(string(text))
			return len(pids) == tries
		})
		cancel()
		if err := <-result; err == nil || !strings.Contains(err.Error(), "mount NFS export fs:/export: given up") {
			t.Error(err)
		}
		proctest.Await(t, time.Minute, "the end of mount(8)", func() bool {
			stat, err := os.ReadFile("/proc/" + pids[tries-1] + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
}

// asked keeps what is asked for, and where, and refuses what is at a path with "away".
type asked struct {
	childpool.Runner
	calls []string
}

func (a *asked) Run(ctx context.Context, c childpool.Call) (json.RawMessage, error) {
	a.calls = append(a.calls, strings.TrimSpace(c.Operation+" "+c.Path+" "+c.On))
	if strings.Contains(c.Path, "away") {
		return nil, errors.New("has not answered")
	}
	return nil, nil
}

// TestAServerThatIsAwayIsWaitedForOnItsOwn: its end is no call on the file system on which all pods have their folders.
func TestAServerThatIsAwayIsWaitedForOnItsOwn(t *testing.T) {
	root := t.TempDir()
	pod := filepath.Join(root, "pods", "u1")
	if err := os.MkdirAll(pod, 0o750); err != nil {
		t.Fatal(err)
	}
	list := "20 1 8:1 / / rw - ext4 /dev/sda rw\n"
	for i, path := range []string{"pods/u1/a\\040b", "pods/u1/a\\040b/sub", "pods/u1/disk", "pods/u10/other"} {
		kind := "nfs4"
		if strings.HasSuffix(path, "disk") {
			kind = "ext4"
		}
		list += fmt.Sprintf("%d 20 0:%d / %s/%s rw - %s server:/x rw\n", 30+i, 30+i, root, path, kind)
	}
	foreign := &asked{}
	m := NewManager(ManagerOptions{RootDir: root, Tokens: noTokens{}, Mounter: mount.New(""), Foreign: foreign})
	m.mountInfo = filepath.Join(root, "mountinfo")
	if err := os.WriteFile(m.mountInfo, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	want := []string{"unmount NFS export " + pod + "/a b/sub server", "unmount NFS export " + pod + "/a b server",
		"remove " + pod}
	if !slices.Equal(foreign.calls, want) {
		t.Errorf("calls: %q", foreign.calls)
	}
	foreign.calls = nil
	if err := os.WriteFile(m.mountInfo, []byte(strings.ReplaceAll(list, "sub", "away")), 0o600); err != nil {
		t.Fatal(err)
	}
	want = []string{"unmount NFS export " + pod + "/a b/away server", "unmount NFS export " + pod + "/a b server"}
	if err := m.Unmount(t.Context(), "u1"); err == nil || !slices.Equal(foreign.calls, want) {
		t.Errorf("%v after %q", err, foreign.calls)
	}
}

// dead is a mount of a server that is away, as the kernel keeps one: a plain unmount waits until it is forced.
type dead struct {
	forced chan struct{}
	// busy is what a forced unmount returns.
	busy error
	// off is how long it takes until the export is off the list of mounts; 0 is until it is forced.
	off time.Duration

	mu    sync.Mutex
	flags []int
}

func (d *dead) unmount(_ string, flags int) error {
	d.mu.Lock()
	d.flags = append(d.flags, flags)
	d.mu.Unlock()
	switch flags {
	case 0:
		<-d.forced
		return unix.EIO
	case unix.MNT_FORCE:
		close(d.forced)
		return d.busy
	}
	return nil
}

// did returns the flags of all unmounts, of which one may be under way.
func (d *dead) did() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.flags)
}

// kernel has the export at /p/x.
func (d *dead) kernel() *kernel {
	list := mount.NewFakeMounter([]mount.MountPoint{{Path: "/p/x", Type: "nfs4"}})
	if d.off > 0 {
		time.AfterFunc(d.off, func() { _ = list.Unmount("/p/x") })
	}
	return &kernel{unmount: d.unmount, mounter: func() mount.Interface { return list }}
}

// TestNobodyWaitsForTheEndOfAnExport: an export that is off the list of mounts holds up no pod, however long the kernel
// waits for its server.
func TestNobodyWaitsForTheEndOfAnExport(t *testing.T) {
	for _, takes := range []time.Duration{time.Millisecond, forceAfter / 2} {
		synctest.Test(t, func(t *testing.T) {
			d := &dead{forced: make(chan struct{}), off: takes}
			begun := time.Now()
			err := d.kernel().unmountOne(t.Context(), &mount.MountPoint{Path: "/p/x", Type: "nfs4"})
			if took := time.Since(begun); err != nil || took > takes+lookAfter || fmt.Sprint(d.did()) != "[0]" {
				t.Errorf("after %s with %v: %v", took, d.did(), err)
			}
			if len(d.did()) == 1 {
				close(d.forced)
			}
		})
	}
}

func TestAnExportOfADeadServerIsUnmountedByForce(t *testing.T) {
	for name, c := range map[string]struct {
		busy error
		want []int
	}{
		"idle":           {nil, []int{0, unix.MNT_FORCE}},
		"gone meanwhile": {unix.EINVAL, []int{0, unix.MNT_FORCE}},
		"in use":         {unix.EBUSY, []int{0, unix.MNT_FORCE, unix.MNT_DETACH}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dead{forced: make(chan struct{}), busy: c.busy}
				begun := time.Now()
				err := d.kernel().unmountOne(t.Context(), &mount.MountPoint{Path: "/p/x", Type: "nfs4"})
				if err != nil || time.Since(begun) != forceAfter || fmt.Sprint(d.did()) != fmt.Sprint(c.want) {
					t.Errorf("after %s with %v: %v", time.Since(begun), d.did(), err)
				}
			})
		})
	}
}

// TestServersAndPathsOfNFS: no child is asked for what is no server or no path.
func TestServersAndPathsOfNFS(t *testing.T) {
	for _, c := range []struct {
		source v1.NFSVolumeSource
		want   string
	}{
		{v1.NFSVolumeSource{Server: "-fs", Path: "/export"}, `nfs.server "-fs" must be the name or the IP address`},
		{v1.NFSVolumeSource{Server: "fs/x", Path: "/export"}, `nfs.server "fs/x" must be the name or the IP address`},
		{v1.NFSVolumeSource{Server: "fs x", Path: "/export"}, `nfs.server "fs x" must be the name or the IP address`},
		{v1.NFSVolumeSource{Server: "", Path: "/export"}, `nfs.server "" must be the name or the IP address`},
		{v1.NFSVolumeSource{Server: "fs", Path: "export"}, `nfs.path "export" must be an absolute path`},
	} {
		foreign := &asked{}
		pv := persistentVolume("pv-1", v1.PersistentVolumeSource{NFS: &c.source})
		m := NewManager(ManagerOptions{
			RootDir: t.TempDir(), Objects: &api{}, Tokens: &api{}, Mounter: mount.New(""), Foreign: foreign, BootID: "boot",
			Claims: &claimed{volumes: map[string]*v1.PersistentVolume{"data": pv}},
		})
		own := user(v1.VolumeSource{NFS: &c.source})
		errs := []error{m.Check(t.Context(), own)}
		for _, p := range []*v1.Pod{own, claimant("u2", false)} {
			_, err := m.Mount(t.Context(), p)
			errs = append(errs, err)
		}
		for i, err := range errs {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%d: %v, want %s", i, err, c.want)
			}
		}
		if len(foreign.calls) > 0 {
			t.Errorf("a child was asked: %q", foreign.calls)
		}
	}
}
