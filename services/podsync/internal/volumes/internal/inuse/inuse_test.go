package inuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// fakeNode is a Node whose watch may lag behind what the API server has.
type fakeNode struct {
	mu              sync.Mutex
	watched, stored []string
	inUse           []v1.UniqueVolumeName
	refreshed       bool
	reads           int
	away            error
	changed         chan struct{}
}

func (n *fakeNode) Node() *v1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := n.watched
	if n.refreshed {
		names = n.stored
	}
	out := &v1.Node{Status: v1.NodeStatus{VolumesInUse: n.inUse}}
	for _, name := range names {
		out.Status.VolumesAttached = append(out.Status.VolumesAttached, v1.AttachedVolume{Name: v1.UniqueVolumeName(name)})
	}
	return out
}

func (n *fakeNode) Until(ctx context.Context, wanted func(*v1.Node) bool) error {
	for {
		n.mu.Lock()
		changed := n.changed
		n.mu.Unlock()
		if wanted(n.Node()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *fakeNode) Refresh(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refreshed = n.away == nil
	n.reads++
	return n.away
}

// attach is what the controller does; the watch reports it.
func (n *fakeNode) attach(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watched, n.stored, n.refreshed = names, names, false
	close(n.changed)
	n.changed = make(chan struct{})
}

// rig is a list, and what was put last.
type rig struct {
	*List
	node *fakeNode
	last *podsyncv1.Volumes
	puts int
}

func newRig() *rig {
	r := &rig{node: &fakeNode{changed: make(chan struct{})}}
	r.List = New(r.node, func(m *podsyncv1.Volumes) { r.last, r.puts = m, r.puts+1 })
	return r
}

func (r *rig) set(names ...string) *podsyncv1.Volumes {
	is := map[string]bool{}
	for _, name := range names {
		is[name] = true
	}
	r.Set(is)
	return r.last
}

// accept is what nodestatus says once the API server has a list.
func (r *rig) accept(m *podsyncv1.Volumes) {
	r.Heard(&nodestatusv1.Reported{VolumesInstance: m.Instance, VolumesGeneration: m.Generation})
}

// await begins to wait; is reports whether it goes on, and with what error it ended.
func (r *rig) await(t *testing.T, name string) (waits func() (bool, error)) {
	done := make(chan error, 1)
	go func() { done <- r.Await(t.Context(), name) }()
	return func() (bool, error) {
		synctest.Wait()
		select {
		case err := <-done:
			return false, err
		default:
			return true, nil
		}
	}
}

func (r *rig) ends(t *testing.T, what string, waits func() (bool, error)) {
	t.Helper()
	if still, err := waits(); still || err != nil {
		t.Errorf("%s: waits %t, %v", what, still, err)
	}
}

func mustWait(t *testing.T, what string, waits func() (bool, error)) {
	t.Helper()
	if still, err := waits(); !still {
		t.Errorf("%s, and no caller waited: %v", what, err)
	}
}

func TestAVolumeIsAcceptedFirstAndAttachedThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.node.attach("v") // the controller may be early
		waits := r.await(t, "v")
		mustWait(t, "the volume is not on the list", waits)
		first := r.set("v")
		mustWait(t, "the list was not accepted", waits)
		r.node.attach()
		r.accept(first)
		mustWait(t, "the volume is attached no more", waits)
		r.node.attach("v")
		r.ends(t, "accepted and attached", waits)
		r.node.attach()
		r.ends(t, "it is published again", r.await(t, "v"))
	})
}

// A controller that has seen the volume off the list may be detaching it: neither the acceptance nor the attachment of
// before counts.
func TestAVolumeThatComesBackIsAcceptedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.node.attach("v")
		r.accept(r.set("v"))
		r.ends(t, "at first", r.await(t, "v"))
		gone := r.set()
		back := r.set("v")
		waits := r.await(t, "v")
		mustWait(t, "the list with it is not accepted", waits)
		r.accept(gone)
		mustWait(t, "the list without it is accepted", waits)
		r.node.mu.Lock()
		r.node.watched, r.node.stored = []string{"v"}, nil // the watch has not seen it yet
		r.node.mu.Unlock()
		r.accept(back)
		mustWait(t, "the API server says that it is attached no more", waits)
		r.node.attach("v")
		r.ends(t, "attached again", waits)
	})
}

func TestWhatCountsAsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.node.attach("a", "b")
		first := r.set("a")
		second := r.set("a", "b")
		waits := r.await(t, "b")
		r.Heard(nil)
		r.Heard(&nodestatusv1.Reported{Registered: true, VolumesInUse: []string{"a", "b"}})
		r.Heard(&nodestatusv1.Reported{VolumesInstance: "another", VolumesGeneration: 99})
		r.accept(first)
		mustWait(t, "an earlier list is accepted", waits)
		r.ends(t, "what was on the earlier list", r.await(t, "a"))
		r.accept(second)
		r.ends(t, "the list itself", waits)
		r.set("a", "b", "c")
		r.accept(first) // late
		r.ends(t, "while another list is under way", r.await(t, "b"))
	})
}

func TestWhatIsPut(t *testing.T) {
	r := newRig()
	if m := r.set(); m == nil || m.Generation != 1 || len(m.InUse) != 0 {
		t.Errorf("at first, when none is in use: %v", m)
	}
	r.set("b", "a")
	if m := r.set("a", "b"); r.puts != 2 || !slices.Equal(m.InUse, []string{"a", "b"}) || m.Instance == "" {
		t.Errorf("%d lists, the last %v", r.puts, m)
	}
	if m := r.set("a", "c"); m.Generation != 3 || !slices.Equal(m.InUse, []string{"a", "c"}) {
		t.Errorf("%v", m)
	}
	if New(r.node, nil).instance == r.instance {
		t.Error("two processes count as one")
	}
}

// What is not known may be on the list already, and be one that an earlier process put there.
func TestWhatIsAddedTakesNothingOff(t *testing.T) {
	r := newRig()
	r.node.inUse, r.node.away = []v1.UniqueVolumeName{"before"}, errors.New("away")
	if err := r.Add(t.Context(), map[string]bool{"a": true}); !errors.Is(err, r.node.away) || r.puts != 0 {
		t.Errorf("%v, and %d lists", err, r.puts)
	}
	r.node.away = nil
	if err := r.Add(t.Context(), map[string]bool{"a": true}); err != nil ||
		!slices.Equal(r.last.InUse, []string{"a", "before"}) {
		t.Errorf("%v, %q", err, r.last.GetInUse())
	}
	r.node.inUse = nil
	if err := r.Add(t.Context(), map[string]bool{"b": true}); err != nil ||
		!slices.Equal(r.last.InUse, []string{"a", "b", "before"}) {
		t.Errorf("%v, %q", err, r.last.GetInUse())
	}
	if last := r.set("b"); !slices.Equal(last.InUse, []string{"b"}) {
		t.Errorf("%q", last.InUse)
	}
}

func TestWhatAVolumeWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		list := r.set("v")
		for _, want := range []error{errNotInUse, errNotAttached} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := r.Await(ctx, "v"); !errors.Is(err, want) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want %v", err, want)
			}
			cancel()
			r.accept(list)
		}
		r.node.attach("v", "w")
		r.node.away = errors.New("no route")
		r.accept(r.set("v", "w"))
		if err := r.Await(t.Context(), "w"); !errors.Is(err, r.node.away) {
			t.Errorf("while the API server is away: %v", err)
		}
		r.node.away = nil
		r.ends(t, "the API server is back", r.await(t, "w"))
	})
}

// Volumes that are accepted together need one read of the Node together.
func TestTheNodeIsReadOnceForManyVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var all []string
		for i := range 50 {
			all = append(all, fmt.Sprint(i))
		}
		var waits []func() (bool, error)
		for _, name := range all {
			waits = append(waits, r.await(t, name))
		}
		r.accept(r.set(all...))
		mustWait(t, "nothing is attached", waits[0])
		for i := range all {
			r.node.attach(all[:i+1]...)
			r.ends(t, "attached one after the other", waits[i])
		}
		if r.node.reads != 1 {
			t.Errorf("the Node was read %d times", r.node.reads)
		}
		r.accept(r.set(append(all, "late")...))
		r.node.attach(append(all, "late")...)
		r.ends(t, "a later one", r.await(t, "late"))
		if r.node.reads != 2 {
			t.Errorf("with a later list the Node was read %d times", r.node.reads)
		}
	})
}
