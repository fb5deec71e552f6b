package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/crilog"
	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

func TestTerminationMessage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var log strings.Builder
	for range 100 {
		log.WriteString("2026-01-02T03:04:05.000000006Z stderr F line of the log\n")
	}
	secret := file("secret", "not the container's")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	logPath := file("0.log", log.String())
	for _, test := range []struct {
		name, file, policy string
		exit               int32
		want               string
		prefix             bool
	}{
		{name: "written", file: file("m1", "out of coffee"), exit: 1, want: "out of coffee"},
		{name: "written by one that succeeded", file: file("m2", "done"), want: "done"},
		{name: "longer than the bound", file: file("m3", strings.Repeat("x", 5000)+"y"), exit: 1,
			want: strings.Repeat("x", 4095) + "y"},
		{name: "nothing", file: file("m4", ""), exit: 1},
		{name: "never made", file: filepath.Join(dir, "none"), exit: 1},
		{name: "fallback", file: file("m5", ""), policy: "FallbackToLogsOnError", exit: 1,
			want: strings.Repeat("line of the log\n", 80)},
		{name: "fallback is for failures", file: file("m6", ""), policy: "FallbackToLogsOnError"},
		{name: "file before log", file: file("m7", "the file"), policy: "FallbackToLogsOnError", exit: 1, want: "the file"},
		{name: "a link", file: link, exit: 1, want: "Error on reading termination log", prefix: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, Options{PodLogsDir: dir, Foreign: Operations()})
			id := b.container("u1", b.sandbox("u1", 0), "app", 0, func(cfg *runtimeapi.ContainerConfig) {
				cfg.LogPath = logPath
				cfg.Annotations[pod.AnnotationTerminationMessagePath] = "/dev/termination-log"
				cfg.Annotations[pod.AnnotationTerminationMessagePolicy] = test.policy
				cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: test.file}}
			})
			if err := b.fake.ExitContainer(id, test.exit); err != nil {
				t.Fatal(err)
			}
			got := b.state("u1").Latest("app").Message
			if got != test.want && (!test.prefix || !strings.HasPrefix(got, test.want)) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
		})
	}
}

var program = childpool.Program("microlet-mounter", Operations)

func TestMain(m *testing.M) {
	if !program.Run() { // the children are of this binary
		os.Exit(m.Run())
	}
}

// ended makes a container that has ended. A file of the host is mounted at its terminationMessagePath.
func (b *bench) ended(file string) {
	b.Helper()
	id := b.container("u1", b.sandbox("u1", 0), "app", 0, func(cfg *runtimeapi.ContainerConfig) {
		cfg.Annotations[pod.AnnotationTerminationMessagePath] = "dev/termination-log"
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/dev", HostPath: "/none"}, {ContainerPath: "/dev/termination-log", HostPath: file},
			{ContainerPath: "/dev/termination-log", HostPath: "/podsyncs/own"},
		}
	})
	if err := b.fake.ExitContainer(id, 1); err != nil {
		b.Fatal(err)
	}
}

// TestAMessageOnAFileSystemThatHangs: a pod mounts a file of a volume at its terminationMessagePath, and has the server
// fall silent.
func TestAMessageOnAFileSystemThatHangs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir := t.TempDir()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	if err := unix.Mount("test", dir, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = device.Close() // every request fails then
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	children := childpool.New(childpool.Options{Program: program})
	b := newBench(t, Options{Timeout: 2 * time.Second, PodsDir: "/pods", Foreign: children})
	b.ended(filepath.Join(dir, "file"))
	read := make(chan string)
	go func() {
		message := "the state is not read"
		if s, err := b.rt.State(t.Context(), "u1"); err == nil {
			message = s.Latest("app").Message
		}
		read <- message
	}()
	select {
	case message := <-read:
		if !strings.HasPrefix(message, "Error on reading termination log "+dir+"/file: read termination message") {
			t.Errorf("the message is %q", message)
		}
	case <-time.After(time.Minute):
		t.Fatal("a file system that hangs holds podsync")
	}
}

// asked counts what is asked of it.
type asked struct {
	childpool.Runner
	calls int
	err   error
}

func (a *asked) Run(ctx context.Context, c childpool.Call) (json.RawMessage, error) {
	if a.calls++; a.err != nil {
		return nil, a.err
	}
	return a.Runner.Run(ctx, c)
}

// TestAFileSystemThatHungIsAskedOnce, so that it does not hold the pod each time that its state is read.
func TestAFileSystemThatHungIsAskedOnce(t *testing.T) {
	foreign := &asked{err: errors.New("has not answered")}
	b := newBench(t, Options{Foreign: foreign})
	b.ended("/volume/file")
	for range 2 {
		want := "Error on reading termination log /volume/file: has not answered"
		if got := b.state("u1").Latest("app").Message; got != want || foreign.calls != 1 {
			t.Errorf("the message is %q after %d calls, want %q after one", got, foreign.calls, want)
		}
	}
}

// TestWhoReadsAMessage: podsync the file that it has made, a child any other.
func TestWhoReadsAMessage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	pods := t.TempDir()
	volume := filepath.Join(t.TempDir(), "file")
	in := func(name string) string { return filepath.Join(pods, "u1", "containers", "app", name) }
	if err := errors.Join(os.MkdirAll(in("folder"), 0o750), os.WriteFile(in("own"), []byte("own"), 0o600),
		os.WriteFile(in("covered"), nil, 0o600), os.WriteFile(volume, []byte("volume's"), 0o600),
		os.Symlink(volume, in("link")), unix.Mkfifo(in("fifo"), 0o600),
		unix.Mount(volume, in("covered"), "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(in("covered"), unix.MNT_DETACH) })
	const refused = "Error on reading termination log"
	for _, test := range []struct {
		file, want string
		calls      int
	}{
		{in("own"), "own", 0}, {in("none"), "", 0}, {in("link"), refused, 0}, {in("fifo"), refused, 0},
		{in("folder"), refused, 0}, {in("covered"), "volume's", 1}, {volume, "volume's", 1}, {volume + "s", "", 1},
		{filepath.Join(pods, "u1/volumes/containers/none"), "", 1},
	} {
		foreign := &asked{Runner: Operations()}
		b := newBench(t, Options{PodsDir: pods, Foreign: foreign})
		b.ended(test.file)
		got := b.state("u1").Latest("app").Message
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" || foreign.calls != test.calls {
			t.Errorf("of %s the message is %q after %d calls, want %q after %d", test.file, got, foreign.calls, test.want,
				test.calls)
		}
	}
}

// logLine is a line as runtimes write it.
func logLine(tag, text string) string {
	return "2026-01-02T03:04:05.000000006Z stdout " + tag + " " + text + "\n"
}

func TestEndOfALog(t *testing.T) {
	long := strings.Repeat("x", 2*crilog.MaxLine)
	for name, test := range map[string]struct {
		log, want string
		fails     bool
	}{
		"empty":            {"", "", false},
		"a line":           {logLine("F", "one"), "one\n", false},
		"a line in parts":  {logLine("P", "on") + logLine("F", "e"), "one\n", false},
		"an empty line":    {logLine("F", "one") + logLine("F", ""), "one\n\n", false},
		"no end of line":   {logLine("F", "one") + strings.TrimSuffix(logLine("F", "two"), "\n"), "one\ntwo", false},
		"Docker's":         {`{"log":"one\n","stream":"stderr","time":"2026-01-02T03:04:05Z"}` + "\n", "one\n", false},
		"a line of no log": {logLine("F", "one") + "two\n" + logLine("F", "three"), "one\nthree\n", false},
		"no log":           {"one\n", "", true},
		"many lines":       {strings.Repeat(logLine("F", "x"), 100), strings.Repeat("x\n", maxMessageLogLines), false},
		"many lines and no end of line": {logLine("F", "one") + strings.Repeat(logLine("F", "x"), maxMessageLogLines) +
			strings.TrimSuffix(logLine("F", "cut"), "\n"), strings.Repeat("x\n", maxMessageLogLines), false},
		"no end of line in place of a line of no log": {strings.Repeat(logLine("F", "x"), maxMessageLogLines-1) + "two\n" +
			strings.TrimSuffix(logLine("F", "cut"), "\n"), strings.Repeat("x\n", maxMessageLogLines-1) + "cut", false},
		"long lines": {strings.Repeat(logLine("F", strings.Repeat("x", 1500)+"y"), 3),
			strings.Repeat("x", 544) + "y\n" + strings.Repeat("x", 1500) + "y\n", false},
		"a line that begins before what is read": {logLine("F", long+"y"),
			strings.Repeat("x", maxMessageLogBytes-2) + "y\n", false},
		"lines after it": {logLine("F", long+"y") + logLine("F", "one"),
			strings.Repeat("x", maxMessageLogBytes-6) + "y\none\n", false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "pod", "c", "0.log")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750),
			os.WriteFile(path, []byte(test.log), 0o600)); err != nil {
			t.Fatal(err)
		}
		got, err := newBench(t, Options{PodLogsDir: dir}).rt.readLogEnd(path)
		if (err != nil) != test.fails || got != test.want {
			t.Errorf("%s: %.100q, %v; want %.100q", name, got, err, test.want)
		}
	}
}

// TestLogsOfAPodsMaking: a pod that may write to the folder of logs can put anything in the place of a log.
func TestLogsOfAPodsMaking(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	outside := filepath.Join(t.TempDir(), "secret")
	secret := []byte(logLine("F", "secret"))
	if err := errors.Join(os.WriteFile(outside, secret, 0o600), os.WriteFile(in("other.log"), secret, 0o600),
		os.WriteFile(in("line.log"), []byte(strings.TrimSuffix(logLine("F", ""), "\n")), 0o600),
		os.Truncate(in("line.log"), 64<<30), unix.Mkfifo(in("fifo.log"), 0o600), os.Mkdir(in("folder.log"), 0o700),
		os.Symlink(outside, in("link.log")), os.Symlink("other.log", in("inner.log")),
		os.Symlink(filepath.Dir(outside), in("pod"))); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, Options{PodLogsDir: dir})
	read := func(log string) string {
		policy := string(v1.TerminationMessageFallbackToLogsOnError)
		text, _ := b.rt.terminationMessage(t.Context(), &pod.Container{ID: "c", ExitCode: 1, LogPath: log,
			Annotations: map[string]string{pod.AnnotationTerminationMessagePolicy: policy}})
		return text
	}
	for _, log := range []string{in("fifo.log"), in("folder.log"), in("link.log"), in("inner.log"), in("pod/secret"),
		in("../x"), outside, "x.log", ""} {
		if got := read(log); !strings.HasPrefix(got, "Error on reading termination message from logs: ") ||
			strings.Contains(got, ": secret") {
			t.Errorf("of %q the message is %q", log, got)
		}
	}
	// A reader of all of it would take 64 GiB of memory.
	if got := read(in("line.log")); got != strings.Repeat("\x00", maxMessageLogBytes) {
		t.Errorf("of a log of one line the message has %d bytes: %.100q", len(got), got)
	}
}

// TestNothingButAFileIsReadForAMessage: the pod made what is in the file's place.
func TestNothingButAFileIsReadForAMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "message")
	notregular.Each(t, path, func(t *testing.T) {
		if _, err := (foreignFile{path}).end(); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}
