// Package store keeps what the node has granted to pods, and what their containers were given, in the kubelet's files.
//
// The kubelet has two files of one format: allocated_pods_state and actuated_pods_state. A change counts when it is on
// the disk. Changes that come while the file is written are written together afterwards, so that all pods of a start
// wait for a few writes instead of one each.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/checkpoint"
)

const (
	// maxEntry bounds the resources of one pod, as JSON: about 800 containers with limits and requests of CPU and memory.
	maxEntry = 128 << 10
	// maxEntries bounds those of all pods together.
	maxEntries = 24 << 20
	// maxFile is what entries may take as a string of JSON, and more.
	maxFile = 64 << 20
)

// Store is one of the two files. All methods may be called at the same time. No reader waits for a write.
type Store struct {
	// turn is held by who writes.
	turn chan struct{}
	// file and kept are used by who has the turn; kept is what the file has beside the entries.
	file *checkpoint.File
	kept kept

	mu sync.Mutex
	// entries are those on the disk, without those that were removed since.
	entries map[types.UID]entry
	// next gathers changes for the next write, and underWay is what is being written; nil if nothing is.
	next, underWay *batch
}

// batch are changes that are written together.
type batch struct {
	changes []*change
	// written is closed when the write has ended, with this error.
	written chan struct{}
	err     error
}

func newBatch() *batch { return &batch{written: make(chan struct{})} }

// change is one of a pod's entry.
type change struct {
	uid   types.UID
	apply func(*PodResources)
	// removed says that the pod was removed after the change was asked for.
	removed bool
	err     error
}

// Open returns the store of the file at a path. A file that cannot be used is set aside, and an entry that cannot be
// used is left out. The error says so; the store works with what is left.
func Open(path string) (*Store, error) {
	s := &Store{
		turn: make(chan struct{}, 1), file: checkpoint.New(path, format, maxFile),
		entries: map[types.UID]entry{}, next: newBatch(),
	}
	content, err := s.file.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var skipped error
	if err == nil {
		s.entries, s.kept, skipped, err = parse(content)
	}
	if err != nil {
		s.entries, s.kept = map[types.UID]entry{}, kept{}
		return s, s.file.SetAside(err)
	}
	if skipped != nil {
		return s, fmt.Errorf("%s has entries that cannot be used: %w", path, skipped)
	}
	return s, nil
}

// Get returns what the store has of a pod. The caller may change it.
func (s *Store) Get(uid types.UID) (PodResources, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[uid]
	return e.resources.clone(), ok
}

// UIDs returns the pods of which the store has something, in their order.
func (s *Store) UIDs() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.entries))
}

// Set replaces the resources of a pod. It returns when they are on the disk; after an error the pod has what it had. A
// pod that is removed meanwhile stays removed.
func (s *Store) Set(uid types.UID, r PodResources) error {
	r = r.clone()
	return s.change(uid, func(is *PodResources) { *is = r })
}

// SetContainer replaces the resources of one container, as Set does.
func (s *Store) SetContainer(uid types.UID, name string, r v1.ResourceRequirements) error {
	r = *r.DeepCopy()
	return s.change(uid, func(is *PodResources) { is.Containers[name] = r })
}

// SetPodLevel replaces the resources of the pod as a whole, as Set does.
func (s *Store) SetPodLevel(uid types.UID, r *v1.ResourceRequirements) error {
	r = r.DeepCopy()
	return s.change(uid, func(is *PodResources) { is.Pod = r })
}

// Remove forgets a pod. The file has it until the next change or Flush.
func (s *Store) Remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, uid)
	for c := range s.pending() {
		c.removed = c.removed || c.uid == uid
	}
}

// Retain forgets all pods but these, and but those with a change under way, which may be newer than the caller's list.
// The file has them until the next change or Flush.
func (s *Store) Retain(uids map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := maps.Clone(uids)
	if keep == nil {
		keep = map[types.UID]bool{}
	}
	for c := range s.pending() {
		keep[c.uid] = keep[c.uid] || !c.removed
	}
	maps.DeleteFunc(s.entries, func(uid types.UID, _ entry) bool { return !keep[uid] })
}

// pending yields the changes that are not yet written. The caller holds mu.
func (s *Store) pending() func(yield func(*change) bool) {
	return func(yield func(*change) bool) {
		for _, b := range []*batch{s.underWay, s.next} {
			if b == nil {
				continue
			}
			for _, c := range b.changes {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// Flush returns when the file has what the store has.
func (s *Store) Flush() error {
	s.mu.Lock()
	b := s.next
	s.mu.Unlock()
	s.commit(b)
	return b.err
}

func (s *Store) change(uid types.UID, apply func(*PodResources)) error {
	c := &change{uid: uid, apply: apply}
	s.mu.Lock()
	b := s.next
	b.changes = append(b.changes, c)
	s.mu.Unlock()
	s.commit(b)
	return c.err
}

// commit returns when the batch, which is or was the next one, has been written. The first that gets the turn writes it
// for all that wait.
func (s *Store) commit(b *batch) {
	select {
	case <-b.written:
		return
	case s.turn <- struct{}{}:
	}
	defer func() { <-s.turn }()
	select {
	case <-b.written: // by who had the turn before
	default:
		s.write()
	}
}

// write writes the next batch. The caller has the turn.
func (s *Store) write() {
	s.mu.Lock()
	b := s.next
	s.underWay, s.next = b, newBatch()
	changes := slices.DeleteFunc(slices.Clone(b.changes), func(c *change) bool { return c.removed })
	entries := maps.Clone(s.entries)
	s.mu.Unlock()

	size := 0
	for _, e := range entries {
		size += len(e.text)
	}
	for _, c := range changes {
		size, c.err = c.make(entries, size)
	}
	b.err = s.store(entries)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay = nil
	for _, c := range changes {
		if c.err == nil {
			c.err = b.err
		}
		if c.err == nil && !c.removed {
			s.entries[c.uid] = entries[c.uid]
		}
	}
	close(b.written)
}

// make changes the pod's entry, if all entries, which have this size, are not too large then. It returns the new size.
func (c *change) make(entries map[types.UID]entry, size int) (int, error) {
	was := entries[c.uid]
	is, err := was.with(c.apply)
	if err != nil {
		return size, fmt.Errorf("the resources of pod %s: %w", short(c.uid), err)
	}
	grown := size - len(was.text) + len(is.text)
	if grown > size && grown > maxEntries {
		return size, fmt.Errorf("the resources of pod %s have %d bytes: all pods would have %d together, at most %d are "+
			"possible", short(c.uid), len(is.text), grown, maxEntries)
	}
	entries[c.uid] = is
	return grown, nil
}

func (s *Store) store(entries map[types.UID]entry) error {
	content, err := s.kept.content(entries)
	if err != nil {
		return err
	}
	return s.file.Store(content)
}
