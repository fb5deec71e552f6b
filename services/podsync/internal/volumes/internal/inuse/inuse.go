// Package inuse keeps volumes attached to the node while it uses them.
//
// podsync puts on the bus which volumes are in use, nodestatus writes that into the Node's status, and the controller
// that attaches and detaches leaves alone what it finds there. It takes a volume off the Node's volumesAttached before
// it looks. So a volume that is accepted as in use first, and found attached after that, stays attached until it is
// taken off the list.
//
// Nothing is assumed: while nodestatus, the bus or the API server is away, a volume that is not known to be accepted
// waits.
package inuse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// Node is the Node in the API; see package node.
type Node interface {
	// Until waits until it is as wanted, or ctx ends.
	Until(ctx context.Context, wanted func(*v1.Node) bool) error
	// Refresh asks the API server for the newest version. No older one is seen after that.
	Refresh(ctx context.Context) error
}

// List is the list of volumes in use. It is safe for concurrent use.
type List struct {
	node Node
	put  func(*podsyncv1.Volumes)
	// instance marks this process's generations, and not those of an earlier one.
	instance string

	mu         sync.Mutex
	generation uint64
	// since has each volume on the list, with the generation from which on it has been there.
	since map[string]uint64
	// accepted is the newest generation that the API server is known to have accepted.
	accepted uint64
	// attached are those on the list that were found attached.
	attached map[string]bool
	// changed is closed, and replaced, when a generation is accepted.
	changed chan struct{}
	// read is the generation that was accepted before the Node was last read.
	read uint64
	// reading has a token while a goroutine reads it.
	reading chan struct{}
}

// New returns a list that put sends to nodestatus. Put must not block.
func New(node Node, put func(*podsyncv1.Volumes)) *List {
	return &List{
		node: node, put: put, instance: string(uuid.NewUUID()), since: map[string]uint64{}, attached: map[string]bool{},
		changed: make(chan struct{}), reading: make(chan struct{}, 1),
	}
}

// Set replaces the list by these unique names.
func (l *List) Set(names map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.generation > 0 && len(names) == len(l.since) && !slices.ContainsFunc(slices.Collect(maps.Keys(l.since)),
		func(name string) bool { return !names[name] }) {
		return
	}
	l.generation++
	maps.DeleteFunc(l.since, func(name string, _ uint64) bool { return !names[name] })
	maps.DeleteFunc(l.attached, func(name string, _ bool) bool { return !names[name] })
	for name := range names {
		if _, listed := l.since[name]; !listed {
			l.since[name] = l.generation
		}
	}
	l.put(&podsyncv1.Volumes{
		InUse: slices.Sorted(maps.Keys(l.since)), Instance: l.instance, Generation: l.generation,
	})
}

// Add puts these unique names on the list and takes none off it, as long as not all that is in use is known. A process
// that has put none yet begins with those that the Node has.
func (l *List) Add(ctx context.Context, names map[string]bool) error {
	l.mu.Lock()
	all, first := maps.Clone(names), l.generation == 0
	for name := range l.since {
		all[name] = true
	}
	l.mu.Unlock()
	if first {
		if err := l.node.Refresh(ctx); err != nil {
			return fmt.Errorf("read which volumes the Node has in use: %w", err)
		}
		has := func(n *v1.Node) bool {
			for _, name := range n.Status.VolumesInUse {
				all[string(name)] = true
			}
			return true
		}
		if err := l.node.Until(ctx, has); err != nil {
			return err
		}
	}
	l.Set(all)
	return nil
}

// Heard takes what nodestatus says that the API server has accepted; nil says nothing.
func (l *List) Heard(m *nodestatusv1.Reported) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.GetVolumesInstance() != l.instance || m.GetVolumesGeneration() <= l.accepted {
		return
	}
	l.accepted = m.GetVolumesGeneration()
	close(l.changed)
	l.changed = make(chan struct{})
}

// What a volume waits for. The texts are the kubelet's.
var (
	errNotInUse    = errors.New("volume has not been added to the list of VolumesInUse in the node's volume status")
	errNotAttached = errors.New("volume not attached according to node status")
)

// Await waits until the API server has accepted that the volume is in use, and the controller has attached it. It is
// called for a volume that is on the list, or that the next Set puts there.
func (l *List) Await(ctx context.Context, name string) error {
	for {
		attached, accepted, since, changed := l.state(name)
		if attached {
			return nil
		}
		if accepted {
			return l.awaitAttached(ctx, name, since)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errNotInUse, context.Cause(ctx))
		}
	}
}

func (l *List) state(name string) (attached, accepted bool, since uint64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, listed := l.since[name]
	return l.attached[name], listed && since <= l.accepted, since, l.changed
}

// awaitAttached reads the Node first, since the watch may still show it as it was before the volume was accepted.
func (l *List) awaitAttached(ctx context.Context, name string, since uint64) error {
	if err := l.readSince(ctx, since); err != nil {
		return err
	}
	if err := l.node.Until(ctx, func(n *v1.Node) bool { return isAttached(n, name) }); err != nil {
		return fmt.Errorf("%w: %w", errNotAttached, err)
	}
	l.noteAttached(name, since)
	return nil
}

// readSince has the Node read after a generation was accepted. One read serves all volumes that were accepted by then:
// with a read for each of them, many pods at once would use up the node's budget of requests.
func (l *List) readSince(ctx context.Context, generation uint64) error {
	select {
	case l.reading <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNotAttached, context.Cause(ctx))
	}
	defer func() { <-l.reading }()
	l.mu.Lock()
	accepted, read := l.accepted, l.read
	l.mu.Unlock()
	if read >= generation {
		return nil
	}
	if err := l.node.Refresh(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = accepted
	return nil
}

// noteAttached notes that a volume is attached, if it has stayed on the list meanwhile.
func (l *List) noteAttached(name string, since uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now, listed := l.since[name]; listed && now == since {
		l.attached[name] = true
	}
}

func isAttached(n *v1.Node, name string) bool {
	return slices.ContainsFunc(n.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return string(a.Name) == name })
}
