package userns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Times that the host has for the list of IDs: a directory service may have to be asked.
const (
	timeoutAtStart = 2 * time.Second
	timeout        = 10 * time.Second
)

// Runtime knows what runs.
type Runtime interface {
	// UserNamespaces returns those of all pods of which something runs, and the pods for which they are unknown.
	UserNamespaces(ctx context.Context) (found map[types.UID][]*runtimeapi.UserNamespace, unread map[types.UID]error,
		err error)
}

// Options of a Manager. All are needed.
type Options struct {
	// PodsDir has the folders of the pods.
	PodsDir string
	// IDsPerPod is userNamespaces.idsPerPod, MaxPods the field of that name.
	IDsPerPod uint32
	MaxPods   int
	Host      Host
	Runtime   Runtime
	Log       *slog.Logger
}

// Manager knows who has which IDs. Its methods may be called by several goroutines, for one pod by one at a time.
type Manager struct {
	o Options

	asking chan struct{} // one question to the host at a time

	mu sync.Mutex
	// ids are those that pods may have; their length is 0 while the host has not said it.
	ids Range
	// held are the ranges of pods that have a file. Each is one that the settings give, so that a damaged file cannot take
	// the IDs of all: what runs with other IDs is known from the runtime.
	held map[types.UID]Range
	// freed says in which order ranges were given back, by their first IDs. The longest free is given first.
	freed map[uint32]uint64
	turn  uint64
}

// New reads which pods have which IDs, before anyone gets new ones. Settings that give no pod its IDs are an error, as
// with the kubelet. Until the host has listed its IDs, only pods that need new ones wait for it.
func New(ctx context.Context, o Options) (*Manager, error) {
	m := &Manager{o: o, asking: make(chan struct{}, 1), held: map[types.UID]Range{}, freed: map[uint32]uint64{}}
	ctx, cancel := context.WithTimeout(ctx, timeoutAtStart)
	defer cancel()
	if _, err := m.learn(ctx); errors.Is(err, errSettings) {
		return nil, err
	} else if err != nil {
		o.Log.Warn("the IDs of pods in user namespaces are not known yet", logkey.Err, err)
	}
	return m, m.load()
}

// load reads the files of all pods.
func (m *Manager) load() error {
	entries, err := os.ReadDir(m.o.PodsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the pods' folders: %w", err)
	}
	for _, e := range entries {
		uid := types.UID(e.Name())
		if !e.IsDir() {
			continue
		}
		r, err := read(m.dir(uid))
		if err == nil {
			err = m.suits(r)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // a pod with the users of the host
		case err != nil:
			m.o.Log.Warn("file with a pod's user IDs not used", logkey.PodUID, uid, "file",
				filepath.Join(m.dir(uid), fileName), logkey.Err, err)
		default:
			m.held[uid] = r
		}
	}
	return nil
}

// suits reports whether the range is as the settings have it.
func (m *Manager) suits(r Range) error {
	size := m.o.IDsPerPod
	if r.Length != size || r.First%size != 0 {
		return fmt.Errorf("the range %s is not one of %d IDs (userNamespaces.idsPerPod) that begins at a multiple of it", r,
			size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids.Length != 0 && !m.ids.contains(r) {
		return fmt.Errorf("the range %s is not among the IDs of pods, %s", r, m.ids)
	}
	return nil
}

func (m *Manager) dir(uid types.UID) string { return filepath.Join(m.o.PodsDir, string(uid)) }

// learn returns the IDs that pods may have, and asks the host until it has an answer.
func (m *Manager) learn(ctx context.Context) (Range, error) {
	select {
	case m.asking <- struct{}{}:
		defer func() { <-m.asking }()
	case <-ctx.Done():
		return Range{}, ctx.Err()
	}
	m.mu.Lock()
	ids := m.ids
	m.mu.Unlock()
	if ids.Length != 0 {
		return ids, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ids, err := subordinate(ctx, m.o.Host, m.o.IDsPerPod)
	if err == nil {
		err = checkSettings(ids, m.o.IDsPerPod, m.o.MaxPods)
	}
	if err != nil {
		return Range{}, err
	}
	m.mu.Lock()
	m.ids = ids
	m.mu.Unlock()
	m.o.Log.Debug("pods in user namespaces have IDs", "ids", ids, "each", m.o.IDsPerPod)
	return ids, nil
}

// Of returns the user namespace that a pod's containers have in this sandbox, or that the pod's new sandbox is to have
// if it is nil. The pod must have its folder.
func (m *Manager) Of(ctx context.Context, uid types.UID, sandbox *pod.Sandbox) (*runtimeapi.UserNamespace, error) {
	if sandbox != nil {
		return m.join(uid, sandbox)
	}
	ids, err := m.learn(ctx)
	if err != nil {
		return nil, err
	}
	// Before the lock, since the runtime may be slow. Who begins to run meanwhile has a range that is held.
	running, unread, err := m.o.Runtime.UserNamespaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which user IDs are in use: %w", err)
	}
	for other, err := range unread {
		m.o.Log.Warn("the user IDs of a pod are read from its file, since its sandbox cannot be read", logkey.PodUID, other,
			logkey.Err, err)
		if err := m.unread(other, err); err != nil && other != uid {
			return nil, fmt.Errorf("read which user IDs are in use: %w", err)
		}
	}
	r, fresh, err := m.take(uid, ids, running)
	if err != nil {
		return nil, err
	}
	if fresh {
		if err := write(m.dir(uid), r); err != nil {
			m.Release(uid)
			return nil, fmt.Errorf("write the pod's user IDs: %w", err)
		}
	}
	return r.namespace(), nil
}

// unread takes the file of a pod for what its sandbox has, which cannot be read. A file is there before the sandbox, so
// that a pod with a folder and no file has the users of the host. Of a pod with a damaged file or no folder nothing is
// known, and the error is not nil.
func (m *Manager) unread(uid types.UID, cause error) error {
	m.mu.Lock()
	_, held := m.held[uid]
	m.mu.Unlock()
	if held {
		return nil // take heeds it
	}
	_, err := os.Stat(m.dir(uid))
	if err == nil {
		if _, err = os.Lstat(filepath.Join(m.dir(uid), fileName)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("the user IDs of pod %s are not known: its sandbox cannot be read (%w), and the file %s does not "+
		"contain them: delete the pod", uid, cause, filepath.Join(m.dir(uid), fileName))
}

// join returns what a sandbox has. It comes from the runtime, or else from the pod's file.
func (m *Manager) join(uid types.UID, sandbox *pod.Sandbox) (*runtimeapi.UserNamespace, error) {
	if len(rangesOf(sandbox.UserNamespace)) == 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		r, ok := m.held[uid]
		if !ok {
			return nil, fmt.Errorf("the user IDs of sandbox %s are not known: neither the runtime nor the file %s has them: "+
				"delete the pod", sandbox.ID, filepath.Join(m.dir(uid), fileName))
		}
		return r.namespace(), nil
	}
	if r, ok := rangeOf(sandbox.UserNamespace); ok && m.suits(r) == nil && m.adopt(uid, r) {
		m.o.Log.Warn("the pod's user IDs are read from its sandbox", logkey.PodUID, uid, "ids", r)
		if err := write(m.dir(uid), r); err != nil { // the sandbox has them nevertheless
			m.o.Log.Warn("the pod's user IDs are not written down", logkey.PodUID, uid, logkey.Err, err)
		}
	}
	return sandbox.UserNamespace, nil
}

// adopt holds the range that a pod's sandbox has, and reports whether another was held or none.
func (m *Manager) adopt(uid types.UID, r Range) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[uid] == r {
		return false
	}
	m.held[uid] = r
	return true
}

// take returns the range that a pod holds, if it alone has it and the settings allow it, or a fresh one.
func (m *Manager) take(uid types.UID, ids Range, running map[types.UID][]*runtimeapi.UserNamespace) (r Range,
	fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	others := make([]Range, 0, len(m.held))
	for other, r := range m.held {
		if other != uid {
			others = append(others, r)
		}
	}
	for other, namespaces := range running {
		for _, n := range namespaces {
			if other != uid {
				others = append(others, rangesOf(n)...)
			}
		}
	}
	size := m.o.IDsPerPod
	taken := make([]bool, ids.Length/size)
	for _, other := range others {
		mark(taken, other, ids, size)
	}
	if r, ok := m.held[uid]; ok && ids.contains(r) && !taken[(r.First-ids.First)/size] {
		return r, false, nil
	}
	if r, ok := m.choose(taken, ids); ok {
		m.held[uid] = r
		return r, true, nil
	}
	return Range{}, false, fmt.Errorf("no range of %d user IDs is free: other pods have all of %s", size, ids)
}

// mark marks the places that a range of another pod touches.
func mark(taken []bool, other, ids Range, size uint32) {
	if other.Length == 0 || !other.overlaps(ids) {
		return
	}
	from := (max(other.First, ids.First) - ids.First) / size
	to := (min(other.end(), ids.end()) - 1 - uint64(ids.First)) / uint64(size)
	for i := uint64(from); i <= to && i < uint64(len(taken)); i++ {
		taken[i] = true
	}
}

// choose returns a free range: any that was never used, or else the one that was given back first. A sandbox that was
// given up and comes late then meets no other pod.
func (m *Manager) choose(taken []bool, ids Range) (best Range, found bool) {
	if len(taken) == 0 {
		return Range{}, false
	}
	begin, oldest := rand.IntN(len(taken)), uint64(0)
	for i := range taken {
		place := (begin + i) % len(taken)
		r := Range{First: ids.First + uint32(place)*m.o.IDsPerPod, Length: m.o.IDsPerPod}
		if taken[place] || r.check() != nil { // the last range has the ID that is none
			continue
		}
		turn := m.freed[r.First]
		if turn == 0 {
			return r, true
		}
		if !found || turn < oldest {
			best, oldest, found = r, turn, true
		}
	}
	return best, found
}

// Release frees the IDs of a pod after its folder is removed.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.held[uid]
	if !ok {
		return
	}
	delete(m.held, uid)
	m.turn++
	m.freed[r.First] = m.turn
}
