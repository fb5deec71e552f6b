package userns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// machine is a host with these subordinate IDs of the user kubelet; empty: there is no such user.
type machine struct {
	users, groups string
	err           error
	asked         int
}

func (m *machine) HasUser(context.Context, string) (bool, error) {
	m.asked++
	return m.users != "", m.err
}

func (m *machine) SubIDs(_ context.Context, _ string, groups bool) (string, error) {
	switch {
	case m.users == "no getsubids":
		return "", &exec.Error{Name: "getsubids", Err: exec.ErrNotFound}
	case groups && m.groups != "":
		return m.groups, nil
	}
	return m.users, nil
}

// cri is a runtime in which these user namespaces are in use.
type cri struct {
	used   map[types.UID][]*runtimeapi.UserNamespace
	unread map[types.UID]error
	err    error
}

func (c *cri) UserNamespaces(context.Context) (map[types.UID][]*runtimeapi.UserNamespace, map[types.UID]error, error) {
	return c.used, c.unread, c.err
}

// node is a machine with room for few pods.
type node struct {
	t    *testing.T
	dir  string
	host *machine
	cri  *cri
	log  bytes.Buffer
	ids  uint32
	max  int
}

// places is how many pods have IDs on a node of newNode.
const places = 4

func newNode(t *testing.T) *node {
	return &node{
		t: t, dir: t.TempDir(), cri: &cri{}, ids: Unit, max: places,
		host: &machine{users: fmt.Sprintf("0: kubelet %d %d\n", 10*Unit, places*Unit)},
	}
}

// start is a start of podsync.
func (n *node) start() *Manager {
	n.t.Helper()
	m, err := n.tryStart()
	if err != nil {
		n.t.Fatal(err)
	}
	return m
}

func (n *node) tryStart() (*Manager, error) {
	return New(n.t.Context(), Options{
		PodsDir: n.dir, IDsPerPod: n.ids, MaxPods: n.max, Host: n.host, Runtime: n.cri,
		Log: slog.New(slog.NewTextHandler(&n.log, nil)),
	})
}

// has makes the pod's folder, with this text in its file if there is any.
func (n *node) has(uid types.UID, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Join(n.dir, string(uid)), 0o750); err != nil {
		n.t.Fatal(err)
	}
	if text == "" {
		return
	}
	if err := os.WriteFile(n.file(uid), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) file(uid types.UID) string { return filepath.Join(n.dir, string(uid), "userns") }

func (n *node) text(uid types.UID) string {
	n.t.Helper()
	text, err := os.ReadFile(n.file(uid))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// begins returns the range that a pod's new sandbox gets.
func (n *node) begins(m *Manager, uid types.UID) Range {
	n.t.Helper()
	n.has(uid, "")
	got, err := m.Of(n.t.Context(), uid, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return n.one(got)
}

func (n *node) one(of *runtimeapi.UserNamespace) Range {
	n.t.Helper()
	r, ok := rangeOf(of)
	if !ok || of.GetMode() != runtimeapi.NamespaceMode_POD {
		n.t.Fatalf("user namespace %v", of)
	}
	return r
}

func fileOf(first, length uint32) string {
	mapping := fmt.Sprintf(`[{"hostId":%d,"containerId":0,"length":%d}]`, first, length)
	return `{"uidMappings":` + mapping + `,"gidMappings":` + mapping + `}`
}

func sandbox(r Range) *pod.Sandbox { return &pod.Sandbox{ID: "box", UserNamespace: r.namespace()} }

func TestPodsShareNoIDs(t *testing.T) {
	n := newNode(t)
	m := n.start()
	seen := map[Range]types.UID{}
	for i := range places {
		uid := types.UID(fmt.Sprint("pod-", i))
		r := n.begins(m, uid)
		if other, taken := seen[r]; taken || r.Length != Unit || r.First < 10*Unit || r.end() > (10+places)*Unit {
			t.Errorf("%s has %v, and %s has it too", uid, r, other)
		}
		seen[r] = uid
		if again := n.begins(m, uid); again != r {
			t.Errorf("the next sandbox of %s has %v, not %v", uid, again, r)
		}
		if got := n.text(uid); got != fileOf(r.First, Unit) {
			t.Errorf("file of %s: %s", uid, got)
		}
	}
	n.has("one-more", "")
	if _, err := m.Of(t.Context(), "one-more", nil); err == nil || !strings.Contains(err.Error(), "no range of 65536") {
		t.Errorf("one more: %v", err)
	}
	if _, err := os.Lstat(n.file("one-more")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one more has a file: %v", err)
	}

	// All keep them over a restart, and the one that ends gives them back.
	m = n.start()
	for r, uid := range seen {
		if got := n.begins(m, uid); got != r {
			t.Errorf("after a restart %s has %v, not %v", uid, got, r)
		}
	}
	free := n.begins(m, "pod-0")
	if err := os.RemoveAll(filepath.Join(n.dir, "pod-0")); err != nil {
		t.Fatal(err)
	}
	m.Release("pod-0")
	if got := n.begins(m, "one-more"); got != free {
		t.Errorf("one more has %v, not %v", got, free)
	}
	m.Release("never known")
}

func TestPodsThatBeginAtOnceShareNoIDs(t *testing.T) {
	n := newNode(t)
	m := n.start()
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[Range]bool{}
	for i := range places {
		uid := types.UID(fmt.Sprint("pod-", i))
		n.has(uid, "")
		all.Go(func() {
			users, err := m.Of(t.Context(), uid, nil)
			r, ok := rangeOf(users)
			if err != nil || !ok {
				t.Errorf("%s: %v, %v", uid, users, err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[r] = true
		})
	}
	all.Wait()
	if len(got) != places {
		t.Errorf("%d pods have %v", places, got)
	}
}

// A range that was given back is given again as late as possible: what comes late from the pod before meets no other
// pod.
func TestTheLongestFreeIsGivenFirst(t *testing.T) {
	n := newNode(t)
	m := n.start()
	var order []Range
	for i := range places {
		order = append(order, n.begins(m, types.UID(fmt.Sprint("a", i))))
	}
	for i := range places {
		m.Release(types.UID(fmt.Sprint("a", i)))
	}
	for i := range places {
		if got := n.begins(m, types.UID(fmt.Sprint("b", i))); got != order[i] {
			t.Errorf("pod %d has %v, want %v", i, got, order[i])
		}
	}
}

// A bad file of a pod affects neither another pod, nor podsync, nor the pod, which gets other IDs with its next
// sandbox.
func TestDamagedFiles(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":                   "\x00\x00",
		"empty":                     " ",
		"another kind":              `[]`,
		"no mappings":               `{}`,
		"two mappings":              `{"uidMappings":[{},{}],"gidMappings":[{},{}]}`,
		"users alone":               `{"uidMappings":[{"hostId":655360,"containerId":0,"length":65536}]}`,
		"other groups":              strings.Replace(fileOf(10*Unit, Unit), "655360", "720896", 1),
		"not from 0":                strings.ReplaceAll(fileOf(10*Unit, Unit), `"containerId":0`, `"containerId":1`),
		"the host's own":            fileOf(0, Unit),
		"no IDs":                    fileOf(10*Unit, 0),
		"between two places":        fileOf(10*Unit+1, Unit),
		"of another length":         fileOf(10*Unit, 2*Unit),
		"all IDs":                   fileOf(Unit, 1<<32-1-Unit),
		"beyond the last":           fileOf(1<<32-Unit, Unit),
		"below those of pods":       fileOf(9*Unit, Unit),
		"above those of pods":       fileOf((10+places)*Unit, Unit),
		"negative":                  strings.ReplaceAll(fileOf(10*Unit, Unit), "655360", "-1"),
		"larger than an ID":         strings.ReplaceAll(fileOf(10*Unit, Unit), "655360", "4295032832"),
		"larger than a file may be": fileOf(10*Unit, Unit) + strings.Repeat(" ", maxFile),
	} {
		n := newNode(t)
		n.has("bad", text)
		m := n.start()
		if !strings.Contains(n.log.String(), "podUID=bad") {
			t.Errorf("%s: the log says %q", name, n.log.String())
		}
		seen := map[Range]bool{n.begins(m, "bad"): true}
		for i := range places - 1 {
			seen[n.begins(m, types.UID(fmt.Sprint("good-", i)))] = true
		}
		if len(seen) != places {
			t.Errorf("%s: %d pods have %v", name, places, seen)
		}
		if r, err := read(filepath.Join(n.dir, "bad")); err != nil || !seen[r] {
			t.Errorf("%s: the file says %v, %v", name, r, err)
		}
	}
}

// What lies in the place of a file is neither followed nor waited for, and is replaced.
func TestOtherThingsInTheFilesPlace(t *testing.T) {
	n := newNode(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte(fileOf(10*Unit, Unit)), 0o600); err != nil {
		t.Fatal(err)
	}
	n.has("link", "")
	n.has("fifo", "")
	if err := errors.Join(os.Symlink(outside, n.file("link")), unix.Mkfifo(n.file("fifo"), 0o600),
		os.Symlink(t.TempDir(), filepath.Join(n.dir, "no-folder"))); err != nil {
		t.Fatal(err)
	}
	n.has("folder", "")
	if err := os.Mkdir(n.file("folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := n.start()
	if len(m.held) != 0 {
		t.Errorf("held: %v", m.held)
	}
	if a, b := n.begins(m, "link"), n.begins(m, "fifo"); a == b {
		t.Errorf("both have %v", a)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != fileOf(10*Unit, Unit) {
		t.Errorf("outside: %s, %v", text, err)
	}
	_, err := m.Of(t.Context(), "folder", nil)
	if err == nil || !strings.Contains(err.Error(), "write the pod's user IDs") {
		t.Errorf("a folder: %v", err)
	}
	if _, held := m.held["folder"]; held {
		t.Error("what was not written down is held")
	}
}

// Two pods' files with one range: the pod that begins first gets another.
func TestTwoFilesWithOneRange(t *testing.T) {
	n := newNode(t)
	n.has("a", fileOf(11*Unit, Unit))
	n.has("b", fileOf(11*Unit, Unit))
	m := n.start()
	a, b := n.begins(m, "a"), n.begins(m, "b")
	if a == b || b.First != 11*Unit {
		t.Errorf("a has %v, b has %v", a, b)
	}
	// One of them runs with it: the other moves, whichever begins.
	n.has("c", fileOf(b.First, Unit))
	m = n.start()
	if users, err := m.Of(t.Context(), "b", sandbox(b)); err != nil || n.one(users) != b {
		t.Errorf("b runs with %v, %v", users, err)
	}
	if c := n.begins(m, "c"); c == b || c == a {
		t.Errorf("c has %v, as another", c)
	}
}

// What runs has its IDs whatever the files say.
func TestSandboxesKnowBest(t *testing.T) {
	n := newNode(t)
	own := Range{First: 12 * Unit, Length: Unit}
	foreign := Range{First: 10 * Unit, Length: 2 * Unit} // made with other settings
	n.cri.used = map[types.UID][]*runtimeapi.UserNamespace{
		"lost": {own.namespace(), {Mode: runtimeapi.NamespaceMode_NODE}}, "old": {foreign.namespace()},
	}
	n.has("lost", "")
	n.has("wrong", fileOf(13*Unit, Unit))
	n.has("copied", fileOf(own.First, Unit))
	m := n.start()
	if _, err := m.Of(t.Context(), "copied", nil); err == nil {
		t.Error("every range is in use, and the pod got one")
	}
	m.Release("wrong")
	if r := n.begins(m, "copied"); r.First != 13*Unit {
		t.Errorf("a file says what a sandbox of another pod has, and the pod gets %v", r)
	}
	for uid, r := range map[types.UID]Range{"lost": own, "copied": {First: 10 * Unit, Length: Unit}} {
		users, err := m.Of(t.Context(), uid, sandbox(r))
		if err != nil || n.one(users) != r || n.text(uid) != fileOf(r.First, Unit) {
			t.Errorf("%s joins a sandbox with %v and has %v, %v", uid, r, users, err)
		}
	}
	users, err := m.Of(t.Context(), "old", sandbox(foreign))
	if err != nil || n.one(users) != foreign || m.held["old"] != (Range{}) {
		t.Errorf("a sandbox of other settings: %v, %v", users, err)
	}
	odd := &pod.Sandbox{UserNamespace: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD,
		Uids: []*runtimeapi.IDMapping{{HostId: 1, ContainerId: 1, Length: 1}}}}
	if users, err := m.Of(t.Context(), "odd", odd); err != nil || users != odd.UserNamespace {
		t.Errorf("a sandbox of another maker: %v, %v", users, err)
	}
}

// A runtime that says nothing of user namespaces: the file alone says what the sandbox has.
func TestSandboxesThatSayNothing(t *testing.T) {
	n := newNode(t)
	n.has("a", fileOf(11*Unit, Unit))
	m := n.start()
	silent := &pod.Sandbox{ID: "box"}
	if users, err := m.Of(t.Context(), "a", silent); err != nil || n.one(users).First != 11*Unit {
		t.Errorf("%v, %v", users, err)
	}
	if _, err := m.Of(t.Context(), "b", silent); err == nil || !strings.Contains(err.Error(), "sandbox box") ||
		!strings.Contains(err.Error(), "delete the pod") {
		t.Errorf("without a file: %v", err)
	}
	n.cri.err = errors.New("away")
	if _, err := m.Of(t.Context(), "a", nil); !errors.Is(err, n.cri.err) {
		t.Errorf("without the runtime: %v", err)
	}
}

// Only pods that need new IDs wait for a host that does not say which there are.
func TestAHostThatDoesNotAnswer(t *testing.T) {
	n := newNode(t)
	n.host.err = errors.New("the directory is away")
	n.has("a", fileOf(11*Unit, Unit))
	m := n.start()
	if users, err := m.Of(t.Context(), "a", sandbox(Range{First: 11 * Unit, Length: Unit})); err != nil {
		t.Errorf("%v, %v", users, err)
	}
	if _, err := m.Of(t.Context(), "a", nil); !errors.Is(err, n.host.err) {
		t.Errorf("a new sandbox: %v", err)
	}
	n.host.err = nil
	if r := n.begins(m, "a"); r.First != 11*Unit {
		t.Errorf("a has %v", r)
	}
	asked := n.host.asked
	n.begins(m, "b")
	if n.host.asked != asked {
		t.Error("the host is asked again")
	}
}

func TestAFolderThatIsNoFolder(t *testing.T) {
	n := newNode(t)
	n.dir = filepath.Join(n.dir, "pods")
	if m := n.start(); len(m.held) != 0 {
		t.Errorf("held %v", m.held)
	}
	if err := os.WriteFile(n.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.tryStart(); err == nil {
		t.Error("what cannot be read holds nothing")
	}
}

// FuzzFile: a file in one pod's folder never gives two pods an ID in common, nor an ID that is not for pods.
func FuzzFile(f *testing.F) {
	for _, text := range []string{fileOf(11*Unit, Unit), fileOf(11*Unit, 2*Unit), fileOf(0, Unit),
		fileOf(1<<32-Unit, Unit), fileOf(11*Unit+1, Unit), fileOf(Unit, 1<<32-1-Unit), "{}", "", "null",
		`{"uidMappings":null}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := parse(text); err == nil {
			again, formatErr := format(r)
			if same, err := parse(again); formatErr != nil || err != nil || same != r || r.First < Unit || r.end() > noID {
				t.Fatalf("%q is %v, then %v: %v, %v", text, r, same, formatErr, err)
			}
		}
		n := newNode(t)
		n.has("fuzzed", " "+string(text))
		n.has("other", fileOf(11*Unit, Unit))
		m := n.start()
		all := []Range{n.begins(m, "new"), n.begins(m, "fuzzed"), n.begins(m, "other"), n.begins(m, "newer")}
		for i, a := range all {
			if a.First < 10*Unit || a.end() > (10+places)*Unit {
				t.Errorf("%q: %v", text, a)
			}
			for _, b := range all[:i] {
				if a.overlaps(b) {
					t.Errorf("%q: %v and %v", text, a, b)
				}
			}
		}
	})
}

func TestNothingButAFileIsOpened(t *testing.T) {
	dir := t.TempDir()
	notregular.Each(t, filepath.Join(dir, fileName), func(t *testing.T) {
		if _, err := read(dir); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}

// Of a sandbox that cannot be read the pod's file counts. Only a pod with an unreadable file holds up others.
func TestSandboxesThatCannotBeRead(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		set  func(*node)
		fail bool
	}{
		"with a file":           {set: func(n *node) { n.has("other", fileOf(10*Unit, Unit)) }},
		"with the host's users": {set: func(n *node) { n.has("other", "") }},
		"with a damaged file":   {set: func(n *node) { n.has("other", "{") }, fail: true},
		"without a folder":      {set: func(*node) {}, fail: true},
		"of the pod itself":     {set: func(n *node) { n.has("a", "{"); n.cri.unread = map[types.UID]error{"a": broken} }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.cri.unread = map[types.UID]error{"other": broken}
			test.set(n)
			m := n.start()
			n.has("a", "")
			for range places {
				got, err := m.Of(t.Context(), "a", nil)
				if (err != nil) != test.fail || err != nil && !errors.Is(err, broken) {
					t.Fatalf("%v, %v", got, err)
				}
				if r, ok := rangeOf(got); err == nil && (!ok || name == "with a file" && r.First == 10*Unit) {
					t.Errorf("the pod has the IDs %v", got)
				}
				m.Release("a")
			}
		})
	}
}
