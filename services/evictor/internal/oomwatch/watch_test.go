package oomwatch

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kernel gives one record or error at each read, as /dev/kmsg does.
type kernel []any

func (k *kernel) Read(buffer []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	next := (*k)[0]
	*k = (*k)[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(buffer, next.(string)), nil
}

// log makes records of lines, one second apart.
func log(lines ...string) *kernel {
	var k kernel
	for i, line := range lines {
		k = append(k, fmt.Sprintf("6,%d,%d,-;%s\n SUBSYSTEM=x\n", i, (i+1)*1_000_000, line))
	}
	return &k
}

func kills(t *testing.T, k *kernel, since time.Duration) (got []string) {
	t.Helper()
	w := &Watcher{Log: slog.New(slog.DiscardHandler), Killed: func(k Kill) {
		got = append(got, fmt.Sprintf("%s %d %t", k.Process, k.PID, k.System))
	}}
	if err := w.read(k, since); !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v", err)
	}
	return got
}

const (
	invoked  = "hog invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"
	inCgroup = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/podx," +
		"task_memcg=/kubepods/podx/c,task=hog,pid=77,uid=0"
	global = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom," +
		"task_memcg=/x,task=hog,pid=78,uid=0"
)

func TestKillsAreTold(t *testing.T) {
	for name, test := range map[string]struct {
		lines []string
		want  []string
	}{
		"a cgroup's": {[]string{invoked, "Call Trace:", inCgroup,
			"Memory cgroup out of memory: Killed process 77 (hog) total-vm:9kB"}, []string{"hog 77 false"}},
		"the node's": {[]string{invoked, global, "Out of memory: Killed process 78 (hog) total-vm:9kB"},
			[]string{"hog 78 true"}},
		"before Linux 5.0": {[]string{invoked, "Task in /kubepods/podx/c killed as a result of limit of /kubepods/podx",
			"Killed process 79 (a (b) c) total-vm:9kB"}, []string{"a (b) c 79 false"}},
		"two": {[]string{invoked, inCgroup, invoked, global, "Out of memory: Killed process 78 (hog)"},
			[]string{"hog 77 false", "hog 78 true"}},
		"not begun": {[]string{"Killed process 5 (liar)", inCgroup}, nil},
	} {
		if got := kills(t, log(test.lines...), 0); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestOldAndLostRecords(t *testing.T) {
	k := log(invoked, inCgroup, invoked, "Killed process 80 (young)")
	*k = slices.Insert(*k, 1, any(unix.EPIPE), any(unix.EINVAL), any("no record"), any("6,x,-;"))
	if got := kills(t, k, 2500*time.Millisecond); !slices.Equal(got, []string{"young 80 true"}) {
		t.Errorf("%q", got)
	}
}

func TestTheMessageIsTheKubelets(t *testing.T) {
	for want, k := range map[string]Kill{
		"System OOM encountered, victim process: hog, pid: 7": {Process: "hog", PID: 7},
		"System OOM encountered":                              {},
	} {
		if got := k.Message(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzRecord(f *testing.F) {
	for _, text := range []string{"6,1,2,-;" + invoked, "6,1,2,-;" + inCgroup, "6,1,99999999999999999,-;x", ";", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, line, ok := parseRecord(text)
		if ok && (at < 0 || strings.Contains(line, "\n")) {
			t.Errorf("%q is read as %v, %q", text, at, line)
		}
		p := parser{begun: true}
		p.line(text)
	})
}
