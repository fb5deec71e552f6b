// Package store keeps what the node has granted to pods, and what their containers were given, in the kubelet's files.
//
// The kubelet has two files of one format: allocated_pods_state and actuated_pods_state. A change counts when it is on
// the disk, and pods that change together take one write.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/checkpoint"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

const (
	// maxEntry bounds the resources of one pod, as JSON: about 800 containers with limits and requests of CPU and memory.
	maxEntry = 128 << 10
	// maxEntries bounds those of all pods together.
	maxEntries = 24 << 20
	// maxFile is what entries may take as a string of JSON, and more.
	maxFile = 64 << 20
)

// Store is one of the two files. Its methods may be called at the same time. No reader waits for a write.
type Store struct {
	// writing is held during a write, and guards file and kept, which is what the file has beside the entries.
	writing sync.Mutex
	file    *checkpoint.File
	kept    kept

	mu sync.Mutex
	// entries are those on the disk. The map is replaced and not changed.
	entries map[types.UID]entry
}

// Open returns the store of the file at a path. A file that cannot be used is set aside, and an entry that cannot be
// used is left out. The error says so; the store works with what is left.
func Open(path string) (*Store, error) {
	s := &Store{file: checkpoint.New(path, format, maxFile), entries: map[types.UID]entry{}}
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

// Get returns what the file has of a pod.
func (s *Store) Get(uid types.UID) (pod.Resources, bool) {
	e, ok := s.now()[uid]
	return e.resources, ok
}

// UIDs returns the pods of the file, in their order.
func (s *Store) UIDs() []types.UID { return slices.Sorted(maps.Keys(s.now())) }

func (s *Store) now() map[types.UID]entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries
}

// Write gives these pods other resources, or none to those with nil, and returns when that is on the disk. Those of
// which it returns an error have what they had.
func (s *Store) Write(changes map[types.UID]*pod.Resources) map[types.UID]error {
	s.writing.Lock()
	defer s.writing.Unlock()
	entries, size := maps.Clone(s.now()), 0
	for _, e := range entries {
		size += len(e.text)
	}
	failed := map[types.UID]error{}
	for uid, r := range changes {
		if r == nil {
			size -= len(entries[uid].text)
			delete(entries, uid)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(changes)) {
		r := changes[uid]
		if r == nil {
			continue
		}
		var err error
		if size, err = set(entries, size, uid, *r); err != nil {
			failed[uid] = err
		}
	}
	if err := s.store(entries); err != nil {
		for uid := range changes {
			failed[uid] = err
		}
		return failed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = entries
	return failed
}

// set gives a pod other resources, if all entries, which have this size, are not too large then. It returns the new
// size.
func set(entries map[types.UID]entry, size int, uid types.UID, r pod.Resources) (int, error) {
	was := entries[uid]
	is, err := was.with(r)
	if err != nil {
		return size, fmt.Errorf("the resources of pod %s: %w", short(uid), err)
	}
	grown := size - len(was.text) + len(is.text)
	if grown > size && grown > maxEntries {
		return size, fmt.Errorf("the resources of pod %s have %d bytes: all pods would have %d together, at most %d are "+
			"possible", short(uid), len(is.text), grown, maxEntries)
	}
	entries[uid] = is
	return grown, nil
}

func (s *Store) store(entries map[types.UID]entry) error {
	content, err := s.kept.content(entries)
	if err != nil {
		return err
	}
	return s.file.Store(content)
}
