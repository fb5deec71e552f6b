package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/crilog"
	"github.com/microlet/microlet/services/podsync/internal/labels"
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
			b := newBench(t, Options{PodLogsDir: dir})
			id := b.container("u1", b.sandbox("u1", 0), "app", 0, func(cfg *runtimeapi.ContainerConfig) {
				cfg.LogPath = logPath
				cfg.Annotations[labels.ContainerTerminationMessagePath] = "/dev/termination-log"
				cfg.Annotations[labels.ContainerTerminationMessagePolicy] = test.policy
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
		text, _ := b.rt.terminationMessage(&pod.Container{ID: "c", ExitCode: 1, LogPath: log, Annotations: map[string]string{
			labels.ContainerTerminationMessagePolicy: string(v1.TerminationMessageFallbackToLogsOnError),
		}})
		return text
	}
	for _, log := range []string{in("fifo.log"), in("folder.log"), in("link.log"), in("inner.log"), in("pod/secret"),
		in("../x"), outside, "x.log", ""} {
		if got := read(log); !strings.HasPrefix(got, "Error on reading termination message from logs: ") ||
			strings.Contains(got, ": secret") {
			t.Errorf("of %q the message is %q", log, got)
		}
	}
	// Whoever read it all would take 64 GiB of memory.
	if got := read(in("line.log")); got != strings.Repeat("\x00", maxMessageLogBytes) {
		t.Errorf("of a log of one line the message has %d bytes: %.100q", len(got), got)
	}
}
