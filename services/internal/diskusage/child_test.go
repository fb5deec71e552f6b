package diskusage

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// patience is for what happens soon on an idle machine.
const patience = time.Minute

// fuse mounts a file system that never answers, once it has said that it is one. A process that calls it cannot be
// killed: the kernel has given its request away and waits for the answer. The file system ends with end.
func fuse(t *testing.T) (dir string, end func()) {
	t.Helper()
	dir = folder(t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	mount(t, "test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	device := os.NewFile(uintptr(fd), "/dev/fuse") // not before it is mounted: it cannot be polled then
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<17)
		for {
			n, err := device.Read(buf)
			if err != nil { // the file system has ended
				return
			}
			// From linux/fuse.h: the answer to FUSE_INIT is fuse_out_header, with the number of the request, and
			// fuse_init_out.
			const initOp, headerIn, headerOut, initOut = 26, 40, 16, 64
			if n < headerIn || binary.NativeEndian.Uint32(buf[4:]) != initOp {
				continue
			}
			out := make([]byte, headerOut+initOut)
			binary.NativeEndian.PutUint32(out, uint32(len(out)))
			copy(out[8:16], buf[8:16])
			binary.NativeEndian.PutUint32(out[headerOut:], 7)        // major
			binary.NativeEndian.PutUint32(out[headerOut+4:], 31)     // minor
			binary.NativeEndian.PutUint32(out[headerOut+20:], 1<<12) // max_write
			if _, err := device.Write(out); err != nil {
				return
			}
		}
	}()
	end = sync.OnceFunc(func() {
		_ = device.Close() // every request fails then
		<-done
	})
	t.Cleanup(end)
	return dir, end
}

func realMeasurer(t *testing.T, c Config) *Measurer {
	t.Helper()
	c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	c.Metrics = testMetrics()
	m := New(c)
	done := make(chan error, 1)
	go func() { done <- m.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestRealChildren(t *testing.T) {
	top := tree(t)
	write(t, filepath.Join(top, "volume", "file"), 5000)
	m := realMeasurer(t, Config{Period: 50 * time.Millisecond})
	d := Dir{Path: filepath.Join(top, "volume")}
	if err := m.Track([]Dir{d}); err != nil {
		t.Fatal(err)
	}
	await := func(bytes uint64) {
		proctest.Await(t, patience, fmt.Sprint("a figure of ", bytes), func() bool {
			f, ok := m.Measurement(d)
			return ok && f.UsedBytes == bytes
		})
	}
	await(8192)
	write(t, filepath.Join(d.Path, "more"), 1)
	await(12288)
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, patience, "no figure of what is gone", func() bool {
		_, ok := m.Measurement(d)
		return !ok
	})
}

// The child that hangs cannot even be killed.
func TestAFileSystemThatNeverAnswers(t *testing.T) {
	top := tree(t)
	write(t, filepath.Join(top, "file"), 5000)
	hangs, end := fuse(t)
	m := realMeasurer(t, Config{Period: 50 * time.Millisecond, silent: 200 * time.Millisecond, hung: 5 * time.Second})
	good := Dir{Path: top}
	if err := m.Track([]Dir{{Path: hangs}, {Path: filepath.Join(hangs, "below")}, good}); err != nil {
		t.Fatal(err)
	}
	abandoned := func() float64 { return testutil.ToFloat64(m.metrics.Children.WithLabelValues("abandoned")) }
	proctest.Await(t, patience, "an abandoned child", func() bool { return abandoned() == 1 })
	last := time.Time{}
	for range 3 { // figures go on
		proctest.Await(t, patience, "a newer figure", func() bool {
			f, ok := m.Measurement(good)
			newer := ok && f.Time.After(last)
			last = f.Time
			return newer
		})
	}
	if n := abandoned(); n != 1 {
		t.Errorf("%v children are abandoned", n)
	}
	end()
	proctest.Await(t, patience, "the end of the child after that of the file system", func() bool {
		return abandoned() == 0
	})
}

// processes are the children of this one by that name, with what /proc says of their priority.
func processes(t *testing.T) (found []string) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range list {
		cmdline, _ := os.ReadFile(file) // it may have ended
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		_, fields, _ := strings.Cut(string(stat), ") ")
		if strings.TrimRight(string(cmdline), "\x00") == program.Name &&
			strings.HasPrefix(fields[min(2, len(fields)):], fmt.Sprint(os.Getpid(), " ")) {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}

func TestAChildGivesWay(t *testing.T) {
	child, err := childpool.New(childpool.Options{Program: program}).Session()
	if err != nil {
		t.Fatal(err)
	}
	defer child.End()
	if _, err := (&request{Walk: 1, Path: "/proc/self", Entries: 1}).ask(t.Context(), child, patience); err != nil {
		t.Fatal(err)
	}
	children := processes(t)
	if len(children) != 1 {
		t.Fatalf("children %v, want one", children)
	}
	threads, err := filepath.Glob(children[0] + "/task/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range threads {
		var tid int
		if _, err := fmt.Sscan(filepath.Base(dir), &tid); err != nil {
			t.Fatal(err)
		}
		nice, err := unix.Getpriority(unix.PRIO_PROCESS, tid) // 20 minus the niceness
		class, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(tid), 0)
		if err != nil || errno != 0 || nice != 1 || class>>13 != 3 {
			t.Errorf("thread %d: nice %d, I/O class %d, %v, %v", tid, 20-nice, class>>13, err, errno)
		}
	}
	if score, err := os.ReadFile(children[0] + "/oom_score_adj"); err != nil || string(score) != "1000\n" {
		t.Errorf("OOM score %q, %v", score, err)
	}
	if owner, err := os.Stat(children[0] + "/environ"); err != nil {
		t.Error(err)
	} else if env, _ := os.ReadFile(children[0] + "/environ"); strings.Count(string(env), "\x00") != 2 {
		t.Errorf("%s: environment %q", owner.Name(), env)
	}
}

func TestWalksOfAChild(t *testing.T) {
	top := tree(t)
	nest(t, top, 3)
	requests := []request{
		{Walk: 1, Path: top, Entries: 2},
		{Walk: 2, Path: filepath.Join(top, "missing"), Entries: 2},
		{Walk: 3, Path: "relative", Entries: 2},
		{Walk: 1, Entries: 100},
		{Walk: 4, Path: top, Entries: 1},
		{Walk: 5, Path: top, Entries: 100, Drop: []uint64{4, 77}},
	}
	before := descriptors(t)
	ws := walks{}
	var got []string
	for _, q := range requests {
		a := ws.serve(&q)
		if err := a.check(&q); err != nil {
			t.Error(err)
		}
		got = append(got, fmt.Sprintf("%d: %d done=%v inodes=%d gone=%v failed=%v", a.Walk, a.Entries, a.Done,
			a.Usage.InodesUsed, a.Gone, a.Error != ""))
	}
	want := []string{
		"1: 2 done=false inodes=3 gone=false failed=false",
		"2: 0 done=true inodes=0 gone=true failed=true",
		"3: 0 done=true inodes=0 gone=false failed=true",
		"1: 4 done=true inodes=7 gone=false failed=false",
		"4: 1 done=false inodes=2 gone=false failed=false",
		"5: 6 done=true inodes=7 gone=false failed=false",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("answers:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if left := descriptors(t) - before; left != 0 {
		t.Errorf("%d descriptors stayed open", left)
	}
}

func FuzzRequests(f *testing.F) {
	f.Add([]byte(`{"walk":1,"path":"/proc/self/task","mode":0,"entries":5}`))
	f.Add([]byte(`{"walk":1,"path":"/proc/self/task","mode":1,"entries":-5}` + "\n" + `{"drop":[1]}`))
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if bytes.Contains(in, []byte("/")) && !bytes.Contains(in, []byte("/proc/self/task")) {
			return // no walk through the machine
		}
		ws := walks{}
		for line := range bytes.Lines(in) {
			_, _ = ws.operations().Run(t.Context(), childpool.Call{Operation: measureSlice.Name, Args: line}) // it may fail
		}
		for _, w := range ws {
			w.close()
		}
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"walk":1,"entries":5,"done":true,"usage":{"UsedBytes":1}}`))
	f.Add([]byte(`{"entries":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var a *answer
		if json.Unmarshal(line, &a) != nil || a.check(&request{Walk: 1, Entries: 7}) != nil {
			return
		}
		if a.Walk != 1 || a.Entries < 0 || a.Entries > 7 || len(a.Error) > maxReason {
			t.Errorf("%+v", a)
		}
	})
}
