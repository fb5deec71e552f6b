package ages

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
)

// node is a machine with a clock that a test sets.
type node struct {
	t    *testing.T
	path string
	boot Boot
}

func newNode(t *testing.T) *node {
	t.Helper()
	return &node{t: t, path: filepath.Join(t.TempDir(), "ages.json"), boot: Boot{ID: "one", Uptime: time.Hour}}
}

func (n *node) open() *Store {
	n.t.Helper()
	s, err := Open(Options{
		Path: n.path, Log: slog.New(slog.DiscardHandler), Boot: func() (Boot, error) { return n.boot, nil },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (n *node) pass(d time.Duration) { n.boot.Uptime += d }

func (n *node) reboot() { n.boot = Boot{ID: n.boot.ID + "+", Uptime: time.Minute} }

func (n *node) see(s *Store, present []string, used ...string) {
	n.t.Helper()
	inUse := map[string]bool{}
	for _, id := range used {
		inUse[id] = true
	}
	if err := s.See(present, inUse); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) has(s *Store, want map[string]Age) {
	n.t.Helper()
	got := s.Of()
	if len(got) != len(want) {
		n.t.Errorf("ages of %d images: %v", len(got), got)
	}
	for id, w := range want {
		if got[id] != w {
			n.t.Errorf("%s is %+v, want %+v", id, got[id], w)
		}
	}
}

func TestAges(t *testing.T) {
	n := newNode(t)
	s := n.open()
	n.see(s, []string{"a", "b"}, "a")
	n.pass(time.Hour)
	n.has(s, map[string]Age{"a": {time.Hour, time.Hour, true}, "b": {time.Hour, time.Hour, false}})
	n.see(s, []string{"b", "c"}, "b")
	n.pass(time.Minute)
	n.has(s, map[string]Age{"b": {61 * time.Minute, time.Minute, true}, "c": {time.Minute, time.Minute, false}})
}

// The time while imagegc is away counts within limits, the time while the node is off does not.
func TestRestartsAndReboots(t *testing.T) {
	n := newNode(t)
	n.see(n.open(), []string{"a"}, "a")
	n.pass(7 * time.Minute)
	n.has(n.open(), map[string]Age{"a": {7 * time.Minute, 7 * time.Minute, true}})
	n.pass(30 * 24 * time.Hour) // another agent has run the node
	n.has(n.open(), map[string]Age{"a": {maxAway, maxAway, true}})
	s := n.open()
	n.pass(50 * time.Minute)
	n.see(s, []string{"a", "b"})
	n.reboot()
	s = n.open()
	n.has(s, map[string]Age{"a": {61 * time.Minute, 61 * time.Minute, true}, "b": {time.Minute, time.Minute, false}})
	n.pass(time.Minute)
	n.see(s, []string{"a", "b"}, "b")
	n.reboot()
	n.has(n.open(), map[string]Age{"a": {63 * time.Minute, 63 * time.Minute, true},
		"b": {3 * time.Minute, time.Minute, true}})
}

// An uptime that goes back, as after a restore of the machine from a snapshot, makes nothing younger.
func TestUptimeThatGoesBack(t *testing.T) {
	n := newNode(t)
	s := n.open()
	n.see(s, []string{"a"})
	n.pass(time.Hour)
	n.has(s, map[string]Age{"a": {time.Hour, time.Hour, false}})
	n.boot.Uptime = time.Minute
	n.has(s, map[string]Age{"a": {time.Hour, time.Hour, false}})
	n.pass(time.Minute)
	n.has(s, map[string]Age{"a": {61 * time.Minute, 61 * time.Minute, false}})
}

func TestAFileThatCannotBeReadIsSetAside(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version":1,"ran":`, "newer": `{"version":2}`, "negative": `{"version":1,"ran":-1}`,
		"future": `{"version":1,"ran":5,"images":{"a":{"detected":6}}}`,
		"used":   `{"version":1,"ran":5,"images":{"a":{"detected":1,"lastUsed":9}}}`,
		"large":  `{"version":1}` + strings.Repeat(" ", maxFile),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if err := os.WriteFile(n.path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s := n.open()
			n.has(s, nil)
			if kept, err := os.ReadFile(n.path + ".unreadable"); err != nil || string(kept) != text {
				t.Errorf("%d bytes are kept: %v", len(kept), err)
			}
			n.see(s, []string{"a"})
			n.has(n.open(), map[string]Age{"a": {0, 0, false}})
		})
	}
}

// A crash between any two steps of a save leaves a file that can be read.
func TestWhatACrashLeaves(t *testing.T) {
	n := newNode(t)
	s := n.open()
	n.see(s, []string{"a"})
	if err := os.WriteFile(n.path+".new", []byte(`{"version":1,"ra`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.pass(time.Minute)
	s = n.open()
	n.has(s, map[string]Age{"a": {time.Minute, time.Minute, false}})
	n.see(s, []string{"a"})
	if left, err := filepath.Glob(n.path + "?*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// What cannot be saved counts until the next start.
func TestAFolderThatIsGone(t *testing.T) {
	n := newNode(t)
	s := n.open()
	if err := os.RemoveAll(filepath.Dir(n.path)); err != nil {
		t.Fatal(err)
	}
	if err := s.See([]string{"a"}, nil); err == nil {
		t.Error("no error")
	}
	n.pass(time.Minute)
	n.has(s, map[string]Age{"a": {time.Minute, time.Minute, false}})
}

func TestReadBoot(t *testing.T) {
	a, err := ReadBoot()
	if err != nil {
		t.Fatal(err)
	}
	b, err := ReadBoot()
	if err != nil || a.ID == "" || a.ID != b.ID || b.Uptime < a.Uptime {
		t.Errorf("%+v, then %+v, %v", a, b, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"bootID":"b","uptime":1,"ran":5,"images":{"a":{"detected":1,"lastUsed":2}}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parse(data)
		if err != nil {
			return
		}
		for id, r := range got.Images {
			if r.Detected < 0 || r.Detected > got.Ran {
				t.Errorf("%q was detected at %v of %v", id, r.Detected, got.Ran)
			}
		}
	})
}

func TestNothingButAFileIsOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ages")
	notregular.Each(t, path, func(t *testing.T) {
		if _, err := read(path); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}
