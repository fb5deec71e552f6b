package pluginregistration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// settle bounds how often the folder is read while it changes.
	settle = 50 * time.Millisecond
	// watchRetry is how soon the folder is read again when it could not be read or watched.
	watchRetry = 10 * time.Second
)

// Options say where plugins appear and which handlers take them.
type Options struct {
	// Root is --root-dir. Sockets are in plugins_registry below it, which Run makes, and endpoints are anywhere below it.
	Root string
	// Handlers take plugins by type. A plugin of another type is refused.
	Handlers map[string]Handler
	Log      *slog.Logger
	// Metrics gets plugin_manager_total_plugins.
	Metrics prometheus.Registerer
}

// Manager registers the plugins of one folder.
type Manager struct {
	o      Options
	folder folder
	// lives are the registrations by relative path. One that ends stays until its goroutine has ended, so that the next
	// one at its path waits for it.
	lives  map[string]*life
	wg     sync.WaitGroup
	counts counts
	// problem is what was last logged of the folder.
	problem string
}

// life is one registration.
type life struct {
	id    identity
	end   context.CancelCauseFunc
	ended bool
	done  chan struct{}
}

// New returns a manager; Run starts it.
func New(o Options) *Manager {
	o.Root = filepath.Clean(o.Root)
	return &Manager{
		o: o, folder: folder{filepath.Join(o.Root, "plugins_registry")}, lives: map[string]*life{},
		counts: newCounts(o.Metrics),
	}
}

// Run registers plugins until ctx ends. Plugins stay registered then: their handlers are not called.
func (m *Manager) Run(ctx context.Context) error {
	defer m.wg.Wait()
	for ctx.Err() == nil {
		err := m.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		m.report(err)
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

// watch reads the folder at each change, until the watch breaks or ctx ends.
func (m *Manager) watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return errors.Join(err, m.update(ctx, func(string) error { return nil }))
	}
	defer func() { _ = watcher.Close() }()
	for {
		err := m.update(ctx, watcher.Add)
		if err != nil && !errors.Is(err, errTooMany) {
			return err
		}
		m.report(err)
		if err := changed(ctx, watcher); err != nil {
			return err
		}
		select { // the changes of this moment are read at once
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

// changed waits for a change, or for the end of ctx.
func changed(ctx context.Context, watcher *fsnotify.Watcher) error {
	select {
	case <-ctx.Done():
		return nil
	case _, ok := <-watcher.Events:
		if !ok {
			return fsnotify.ErrClosed
		}
		return nil
	case err := <-watcher.Errors:
		if errors.Is(err, fsnotify.ErrEventOverflow) { // the folder is read anyhow
			return nil
		}
		return err
	}
}

// report logs a problem once, and its end.
func (m *Manager) report(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem == m.problem {
		return
	}
	m.problem = problem
	if problem == "" {
		m.o.Log.Info("folder of plugins is watched", logkey.Dir, m.folder.path)
		return
	}
	m.o.Log.Warn("folder of plugins is not watched in full", logkey.Dir, m.folder.path, logkey.Err, problem)
}

// update reads the folder, ends the registrations of sockets that are gone, and begins those of new ones.
func (m *Manager) update(ctx context.Context, watch func(string) error) error {
	if err := os.MkdirAll(m.folder.path, 0o750); err != nil { // as the kubelet makes it
		return fmt.Errorf("make the folder of plugins: %w", err)
	}
	found, err := m.folder.sockets(watch)
	for relative, l := range m.lives {
		id, ok := found[relative]
		if !l.ended && (ok && id != l.id || !ok && m.gone(relative, l.id)) {
			l.ended = true
			l.end(errGone)
		}
		if l.ended && isClosed(l.done) {
			delete(m.lives, relative)
		}
	}
	for relative, id := range found {
		if l := m.lives[relative]; l == nil || l.ended {
			m.begin(ctx, relative, id)
		}
	}
	return err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// gone says whether a socket that the walk did not find is gone: the walk may have ended early.
func (m *Manager) gone(relative string, id identity) bool {
	fd, now, err := m.folder.socket(relative)
	if err == nil {
		_ = unix.Close(fd)
		return now != id
	}
	for _, unknown := range []error{unix.EACCES, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EIO} {
		if errors.Is(err, unknown) {
			return false
		}
	}
	return true
}

// begin starts the registration of a new socket, after that of the one it replaces.
func (m *Manager) begin(ctx context.Context, relative string, id identity) {
	before := m.lives[relative]
	life := &life{id: id, done: make(chan struct{})}
	alive, end := context.WithCancelCause(ctx)
	life.end = end
	m.lives[relative] = life
	r := registration{dialer{m.folder, relative, id}, m.o.Root, m.o.Handlers, m.o.Log, m.counts}
	m.wg.Go(func() {
		defer close(life.done)
		defer end(nil)
		if before != nil {
			<-before.done
		}
		r.run(ctx, alive)
	})
}
