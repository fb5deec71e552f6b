package diskusage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/samemount"
)

// forever is later than any slice ends.
var forever = time.Now().Add(24 * time.Hour)

// measure walks in slices of the length.
func measure(t *testing.T, d Dir, slice int) Usage {
	t.Helper()
	w, err := newWalk(d)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	for {
		n, done := w.step(slice, forever)
		if n > slice {
			t.Fatalf("a slice of %d looked at %d entries", slice, n)
		}
		if done {
			return w.usage()
		}
	}
}

// du is what the tool says: bytes, and inodes.
func du(t *testing.T, path string) (bytes, inodes uint64) {
	t.Helper()
	sum := func(flag string) uint64 {
		out, err := exec.Command("du", "--summarize", "--one-file-system", flag, path).Output()
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(strings.Fields(string(out))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return sum("--block-size=1"), sum("--inodes")
}

func write(t *testing.T, path string, size int) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err := errors.Join(err, os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// tree returns an empty folder on a file system of its own, where blocks are allocated at once.
func tree(t *testing.T) string {
	t.Helper()
	dir := folder(t)
	mount(t, "tmpfs", dir, "tmpfs", 0, "size=1g,nr_inodes=0")
	return dir
}

func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// ext4 returns an empty folder on a loop device.
func ext4(t *testing.T) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), folder(t)
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// syncTree has the file system allocate what was written.
func syncTree(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Syncfs(int(f.Fd())), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestRandomTreesAsDu(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		top := tree(t)
		if seed == 0 {
			top = ext4(t)
		}
		dirs, files := []string{top}, []string{}
		for i := range 300 {
			in := dirs[r.IntN(len(dirs))]
			path := filepath.Join(in, fmt.Sprintf("%d-%s", i, strings.Repeat("n", r.IntN(200))))
			var err error
			switch k := r.IntN(10); {
			case k < 2:
				if err = os.Mkdir(path, 0o700); err == nil {
					dirs = append(dirs, path)
				}
			case k < 4 && len(files) > 0:
				err = os.Link(files[r.IntN(len(files))], path)
			case k < 5:
				err = os.Symlink("/usr", path)
			case k < 6:
				err = unix.Mkfifo(path, 0o600)
			case k < 7: // sparse
				if err = os.WriteFile(path, []byte("x"), 0o600); err == nil {
					err = os.Truncate(path, 1<<30)
				}
			default:
				write(t, path, r.IntN(20000))
				files = append(files, path)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		syncTree(t, top) // ext4 allocates blocks late
		bytes, inodes := du(t, top)
		for _, slice := range []int{1, 7, 1 << 20} {
			u := measure(t, Dir{Path: top}, slice)
			if u.UsedBytes != bytes || u.InodesUsed != inodes || u.Unread != 0 {
				t.Errorf("seed %d, slices of %d: %d bytes and %d inodes, %d unread; du says %d and %d", seed, slice,
					u.UsedBytes, u.InodesUsed, u.Unread, bytes, inodes)
			}
		}
	}
}

func TestFileSystemFigures(t *testing.T) {
	top := ext4(t)
	var fs unix.Statfs_t
	if err := unix.Statfs(top, &fs); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{Tree, Files, FileSystem} {
		u := measure(t, Dir{Path: top, Mode: mode}, 1)
		if u.CapacityBytes != fs.Blocks*uint64(fs.Bsize) || u.Inodes != fs.Files || u.AvailableBytes == 0 ||
			u.InodesFree == 0 {
			t.Errorf("%s: %+v of %+v", mode, u, fs)
		}
		if mode == FileSystem && (u.UsedBytes == 0 || u.InodesUsed == 0) {
			t.Errorf("%s: %+v: nothing is used", mode, u)
		}
	}
}

func TestOneFile(t *testing.T) {
	path := filepath.Join(tree(t), "etc-hosts")
	write(t, path, 5000)
	if u := measure(t, Dir{Path: path}, 1); u.UsedBytes != 8192 || u.InodesUsed != 1 {
		t.Errorf("%+v, want 8192 bytes and one inode", u)
	}
	if _, err := newWalk(Dir{Path: path, Mode: Files}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("the files of a file: %v, want ENOTDIR", err)
	}
}

func TestFilesAlone(t *testing.T) {
	top := tree(t)
	write(t, filepath.Join(top, "0.log"), 4096)
	write(t, filepath.Join(top, "0.log.1.gz"), 1)
	write(t, filepath.Join(top, "folder", "deep"), 1<<20)
	if u := measure(t, Dir{Path: top, Mode: Files}, 1); u.UsedBytes != 8192 || u.InodesUsed != 2 {
		t.Errorf("%+v, want 8192 bytes and two inodes", u)
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	top := tree(t)
	write(t, filepath.Join(top, "elsewhere", "large"), 1<<20)
	if err := errors.Join(os.Mkdir(filepath.Join(top, "volume"), 0o700),
		os.Symlink("../elsewhere", filepath.Join(top, "volume", "link")),
		os.Symlink("elsewhere", filepath.Join(top, "swapped"))); err != nil {
		t.Fatal(err)
	}
	if u := measure(t, Dir{Path: filepath.Join(top, "volume")}, 1); u.UsedBytes > 1<<14 || u.InodesUsed != 2 {
		t.Errorf("with a link in it: %+v", u)
	}
	if u := measure(t, Dir{Path: filepath.Join(top, "swapped")}, 1); u.InodesUsed != 1 {
		t.Errorf("as a link: %+v, want the link alone", u)
	}
	if _, err := newWalk(Dir{Path: filepath.Join(top, "swapped", "large")}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("through a link: %v, want ENOTDIR", err)
	}
}

// mount mounts and has it unmounted in the end.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount %s on %s: %v", kind, target, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

func TestMountsAreNotCrossed(t *testing.T) {
	for name, open := range map[string]func(int, string) (int, error){
		"openat2": samemount.Open, "openat": samemount.OpenComparing,
	} {
		t.Run(name, func(t *testing.T) {
			top := tree(t)
			for _, d := range []string{"tmpfs", "same", "source"} {
				if err := os.Mkdir(filepath.Join(top, d), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			write(t, filepath.Join(top, "file"), 1)
			mount(t, "tmpfs", filepath.Join(top, "tmpfs"), "tmpfs", 0, "")
			write(t, filepath.Join(top, "tmpfs", "large"), 1<<20)
			outside := tree(t)
			write(t, filepath.Join(outside, "large"), 1<<20)
			mount(t, outside, filepath.Join(top, "same"), "", unix.MS_BIND, "")
			mount(t, filepath.Join(outside, "large"), filepath.Join(top, "file"), "", unix.MS_BIND, "")

			w, err := newWalk(Dir{Path: top})
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			w.open = open
			w.step(100, forever)
			if u := w.usage(); u.UsedBytes > 1<<15 || u.InodesUsed != 2 || u.Unread != 0 {
				t.Errorf("%+v, want the top and the folder that nothing is mounted on", u)
			}
			// What is asked for may be a mount itself.
			if u := measure(t, Dir{Path: filepath.Join(top, "tmpfs")}, 1); u.UsedBytes != 1<<20 || !u.MountRoot {
				t.Errorf("a mount: %+v, want 1 MiB", u)
			}
			if u := measure(t, Dir{Path: filepath.Join(top, "source")}, 1); u.MountRoot {
				t.Errorf("a folder that is no mount: %+v", u)
			}
		})
	}
}

// nest makes folders in one another, each with a file, and returns the descriptors of some depths.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	for i := 0; i < depth && err == nil; i++ {
		var file, next int
		if file, err = unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600); err == nil {
			err = errors.Join(unix.Close(file), unix.Mkdirat(fd, "down", 0o700))
		}
		if err == nil {
			next, err = unix.Openat(fd, "down", unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(fd)
		fd = next
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestDeepTrees(t *testing.T) {
	top := tree(t)
	const depth = 5000 // no path is long enough
	nest(t, top, depth)
	write(t, filepath.Join(top, "last"), 1)
	before, most := descriptors(t), 0
	w, err := newWalk(Dir{Path: top})
	if err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		_, done = w.step(500, forever)
		most = max(most, descriptors(t)-before)
	}
	if u := w.usage(); u.InodesUsed != 1+2*depth+1 || u.Unread != 0 {
		t.Errorf("%+v, want %d inodes", u, 1+2*depth+1)
	}
	if most > openLevels+2 {
		t.Errorf("%d descriptors were open", most)
	}
	if left := descriptors(t) - before; left != 0 {
		t.Errorf("%d descriptors stayed open", left)
	}
}

func TestTooDeepATree(t *testing.T) {
	top := tree(t)
	nest(t, top, maxLevels+10)
	u := measure(t, Dir{Path: top}, 1<<20)
	if u.Unread != 1 || u.InodesUsed < 2*maxLevels || u.InodesUsed > 2*maxLevels+2 {
		t.Errorf("%+v, want one folder unread", u)
	}
}

// A folder that is moved while the walk is below it leads the walk nowhere else.
func TestAFolderThatIsMoved(t *testing.T) {
	top := tree(t)
	write(t, filepath.Join(top, "elsewhere", "large"), 1<<20)
	volume := filepath.Join(top, "volume")
	if err := os.Mkdir(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	nest(t, volume, openLevels+10)
	deep := filepath.Join(volume, strings.Repeat("down/", openLevels+4))
	before := descriptors(t)
	w, err := newWalk(Dir{Path: volume})
	if err != nil {
		t.Fatal(err)
	}
	for len(w.levels) < openLevels+8 {
		w.step(1, forever)
	}
	if err := os.Rename(deep, filepath.Join(top, "elsewhere", "moved")); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		_, done = w.step(1, forever)
	}
	if u := w.usage(); u.UsedBytes > 1<<20 || u.Unread == 0 || u.InodesUsed < openLevels {
		t.Errorf("%+v: it has what is elsewhere, or does not say that something is missing", u)
	}
	if left := descriptors(t) - before; left != 0 {
		t.Errorf("%d descriptors stayed open", left)
	}
}

func TestWhatVanishes(t *testing.T) {
	top := filepath.Join(tree(t), "volume")
	for i := range 400 { // more than one read of the folder returns
		write(t, filepath.Join(top, fmt.Sprint("folder", i), "file"), 1)
	}
	w, err := newWalk(Dir{Path: top})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.step(11, forever)
	if err := os.RemoveAll(top); err != nil {
		t.Fatal(err)
	}
	if _, done := w.step(10_000, forever); !done {
		t.Error("the walk goes on")
	}
	if u := w.usage(); u.Unread != 0 || u.InodesUsed > 13 {
		t.Errorf("%+v: what vanished is no error and takes nothing", u)
	}
}

func TestFurtherLinksThanAreRemembered(t *testing.T) {
	var ty tally
	const files = maxLinks + 1000
	for range 3 {
		for i := range uint64(files) {
			ty.add(i, 3, 8, false)
		}
	}
	if bytes, inodes := ty.usage(); bytes != files*8*blockSize || inodes != files {
		t.Errorf("%d bytes in %d inodes, want %d in %d", bytes, inodes, files*8*blockSize, files)
	}
	if len(ty.links) > maxLinks {
		t.Errorf("%d inodes are remembered", len(ty.links))
	}
}

// A service has no right to these folders but CAP_DAC_READ_SEARCH.
func TestAsTheServicesUser(t *testing.T) {
	const user = 47106
	if path := os.Getenv("MEASURE"); path != "" {
		u := measure(t, Dir{Path: path}, 1)
		if u.InodesUsed != 3 || u.Unread != 0 {
			t.Errorf("%+v, want 3 inodes", u)
		}
		return
	}
	top := tree(t)
	volume := filepath.Join(top, "volume")
	write(t, filepath.Join(volume, "closed", "file"), 1)
	if err := errors.Join(os.Chmod(filepath.Join(volume, "closed"), 0), os.Chmod(volume, 0o700)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsTheServicesUser$")
	cmd.Env = []string{"MEASURE=" + volume}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: user, Gid: user},
		AmbientCaps: []uintptr{unix.CAP_DAC_READ_SEARCH},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	// Without the capability it is reported as unread.
	if err := os.Chmod(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := top; dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil && dir == top {
			t.Fatal(err)
		}
		if strings.HasPrefix(filepath.Base(dir), "Test") {
			break
		}
	}
	cmd = exec.Command("/proc/self/exe", "-test.run=^TestAsTheServicesUser$")
	cmd.Env = []string{"MEASURE=" + volume}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Unread:1") {
		t.Errorf("without the capability: %v: %s", err, out)
	}
}

func FuzzDirents(f *testing.F) {
	dir, err := os.Open("/proc/self")
	if err != nil {
		f.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Getdents(int(dir.Fd()), buf)
	if err := errors.Join(err, dir.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(buf[:n])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, buf []byte) {
		for len(buf) > 0 {
			e, rest, err := nextDirent(buf)
			if err != nil {
				return
			}
			if len(rest) >= len(buf) || len(e.name) == 0 || strings.ContainsAny(string(e.name), "/\x00") {
				t.Fatalf("entry %q, %d of %d bytes left", e.name, len(rest), len(buf))
			}
			buf = rest
		}
	})
}

// BenchmarkAgainstDu measures 100,000 files in 1,000 folders.
func BenchmarkAgainstDu(b *testing.B) {
	top := b.TempDir()
	for d := range 1000 {
		dir := filepath.Join(top, fmt.Sprint(d))
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		for f := range 100 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("walk", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w, err := newWalk(Dir{Path: top})
			if err != nil {
				b.Fatal(err)
			}
			w.step(1<<30, time.Now().Add(time.Hour))
			if u := w.usage(); u.InodesUsed != 101_001 {
				b.Fatal(u)
			}
		}
	})
	b.Run("du", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("du", "-s", top).Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
