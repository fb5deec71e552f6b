package devices

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/keylock"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/checkpoint"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/ledger"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/plugin"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/registry"
)

const (
	// defaultGrace is the kubelet's endpointStopGracePeriod.
	defaultGrace = 5 * time.Minute
	// settleTime bounds how long plugins that the file names may take to say what they have.
	settleTime = 30 * time.Second
	// writePeriod is how often the file is written at most for what no pod waits for.
	writePeriod = time.Second
	// retryPeriod is how long after a failure the file is written again.
	retryPeriod = 10 * time.Second
)

// Manager is the device manager of a node. Its methods may be called at the same time, before Run as well.
type Manager struct {
	o       Options
	metrics *metrics
	// dial connects to the plugin of an endpoint, and tries that once or for a while.
	dial func(ctx context.Context, endpoint string, once bool) (plugin.Plugin, error)
	// allocating has a lock for each pod.
	allocating keylock.Locks[types.UID]
	// watching are the goroutines of plugins. They end with running.
	watching sync.WaitGroup
	running  context.Context
	stop     context.CancelFunc
	// wake is for Run, which has something to do.
	wake chan struct{}

	// writing is held during a write of the file. It is locked before mu, never after it.
	writing sync.Mutex
	file    *checkpoint.File

	// mu guards what is below. Nothing waits while it is held.
	mu       sync.Mutex
	registry *registry.Registry
	ledger   ledger.Ledger
	askers   map[types.UID]*asker
	// left are pods with something that the bus does not have any more.
	left map[types.UID]bool
	// unsettled are the plugins that the file names and that have not said what they have. Settled is closed when there is
	// none.
	unsettled map[place]bool
	settled   chan struct{}
	// closed: no plugin can register any more.
	closed bool
	// change is what Run is to report.
	change Change
	// counts are those of the last Node.
	counts []count
	// unwritten: the file has not what it should have.
	unwritten bool
}

// place is where a plugin of a resource is.
type place struct{ resource, endpoint string }

// New returns a manager that has what the checkpoint file says. A file that cannot be used is set aside, and the
// manager begins with nothing; the log says so.
func New(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	m := &Manager{
		o: o, metrics: newMetrics(o.Metrics), wake: make(chan struct{}, 1), registry: registry.New(o.Grace),
		askers: map[types.UID]*asker{}, left: map[types.UID]bool{}, unsettled: map[place]bool{}, settled: make(chan struct{}),
	}
	m.running, m.stop = context.WithCancel(context.Background())
	folders := []string{o.Folder}
	if o.Root != "" {
		folders = append(folders, o.Root)
	}
	m.dial = func(ctx context.Context, endpoint string, once bool) (plugin.Plugin, error) {
		return plugin.Dialer{Folders: folders, Once: once}.Dial(ctx, endpoint)
	}
	m.restore()
	return m
}

// restore reads the file.
func (m *Manager) restore() {
	file, content, err := checkpoint.Open(m.o.Folder)
	if err != nil {
		m.o.Log.Error("what pods were granted is not all known", logkey.Err, err)
	}
	m.file = file
	now := time.Now()
	for name := range content.Registered {
		m.registry.Restore(name, now)
	}
	for _, p := range content.Plugins {
		if _, is := content.Registered[p.ResourceName]; is && m.registry.Plugins() < maxPlugins {
			m.registry.RestorePlugin(p.ResourceName, p.Endpoint, p.PreStartRequired, now)
			m.unsettled[place{p.ResourceName, p.Endpoint}] = true
		}
	}
	for _, e := range content.Entries {
		pod := m.ledger.Granted(e.Pod).With(e.Container, e.Resource, ledger.Grant{Devices: e.Devices, Answer: e.Answer})
		m.ledger.Grant(e.Pod, pod)
		// The kubelet does not forget a resource of which a pod has devices.
		m.registry.Know(e.Resource)
	}
	for _, uid := range content.Gone {
		if len(m.ledger.Granted(uid)) > 0 {
			m.left[uid] = true
		}
	}
	if len(m.unsettled) == 0 {
		close(m.settled)
	}
	m.counts = m.count()
}

// content is what the file is to hold. Call with mu held.
func (m *Manager) content() checkpoint.Content {
	c := checkpoint.Content{Registered: map[string][]string{}, Gone: slices.Sorted(maps.Keys(m.left))}
	stored := m.ledger.Stored()
	uids := make([]types.UID, 0, len(stored))
	for uid := range stored {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	for _, uid := range uids {
		for _, container := range stored[uid] {
			for _, resource := range sortedKeys(container.Grants) {
				g := container.Grants[resource]
				c.Entries = append(c.Entries, checkpoint.Entry{
					Pod: uid, Container: container.Name, Resource: resource, Devices: g.Devices, Answer: g.Answer,
				})
			}
		}
	}
	for _, r := range m.registry.Resources() {
		if !r.Registered() {
			continue
		}
		c.Registered[r.Name] = r.Healthy()
		for _, e := range r.Entries() {
			c.Plugins = append(c.Plugins, checkpoint.Plugin{
				ResourceName: r.Name, Endpoint: e.Endpoint, PreStartRequired: e.Prepares,
			})
		}
	}
	return c
}

// write makes the file hold what it should, and returns when that is on the disk.
func (m *Manager) write() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	content := m.content()
	m.unwritten = false
	m.mu.Unlock()
	err := m.file.Store(content)
	if err != nil {
		m.mu.Lock()
		m.unwritten = true
		m.mu.Unlock()
	}
	return err
}

// Run connects to the plugins that the file names, and works until the context ends. It returns when all its goroutines
// have ended. It is called once.
func (m *Manager) Run(ctx context.Context) error {
	m.reconnect()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var written time.Time
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-timer.C:
		}
		m.report()
		next := m.expire()
		if pause := time.Until(written); m.isUnwritten() && pause <= 0 {
			written = time.Now().Add(m.writeLater())
		} else if m.isUnwritten() && (next.IsZero() || written.Before(next)) {
			next = written
		}
		if !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
		}
	}
	m.close()
	m.watching.Wait()
	m.report()
	if m.isUnwritten() {
		m.writeLater()
	}
	return nil
}

// writeLater writes the file for what no pod waits for, and returns when the next such write is due.
func (m *Manager) writeLater() time.Duration {
	if err := m.write(); err != nil {
		m.o.Log.Error("the checkpoint file could not be written", logkey.Err, err)
		m.awaken()
		return retryPeriod
	}
	return writePeriod
}

func (m *Manager) isUnwritten() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unwritten
}

// close ends the connections to all plugins. What is known of them stays in the file.
func (m *Manager) close() {
	m.mu.Lock()
	m.closed = true
	var open []plugin.Plugin
	for _, r := range m.registry.Resources() {
		for _, e := range r.Entries() {
			if e.Conn != nil {
				open = append(open, e.Conn)
			}
		}
	}
	m.mu.Unlock()
	m.stop()
	for _, conn := range open {
		conn.Close()
	}
}

// expire drops what has been away for long, and returns when the next is.
func (m *Manager) expire() (next time.Time) {
	m.update("", func() {
		var dropped bool
		if next, dropped = m.registry.Expire(time.Now()); dropped {
			m.unwritten = true
		}
	})
	return next
}

// report calls Changed.
func (m *Manager) report() {
	m.mu.Lock()
	c := m.change
	m.change = Change{}
	m.mu.Unlock()
	if m.o.Changed == nil || !c.Node && len(c.Pods) == 0 {
		return
	}
	slices.Sort(c.Pods)
	c.Pods = slices.Compact(c.Pods)
	m.o.Changed(c)
}

func (m *Manager) awaken() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// update changes the registry, and notes what is different then. The change is of one resource, or of the counts alone
// if that is empty.
func (m *Manager) update(resource string, change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.healths(resource)
	change()
	after := m.healths(resource)
	for uid := range after {
		if !equal(before[uid], after[uid]) {
			m.noteChange(uid)
		}
	}
	m.recount()
	if resource != "" {
		m.unwritten = true
		m.awaken()
	}
}

// recount notes whether the node's resources differ. Call with mu held.
func (m *Manager) recount() {
	if len(m.unsettled) > 0 {
		return
	}
	if counts := m.count(); !slices.Equal(counts, m.counts) {
		m.counts, m.change.Node, m.unwritten = counts, true, true
		m.awaken()
	}
}

// noteChange notes that a pod's resources differ. Call with mu held.
func (m *Manager) noteChange(uid types.UID) {
	m.change.Pods = append(m.change.Pods, uid)
	m.awaken()
}

// Leave notes that pods are gone as far as readers of the bus know. What they were granted is not shown any more. It is
// free when the next pod asks: podsync says then which pods have a place. The bus alone does not free it, because a
// forged entry would have two pods share devices.
func (m *Manager) Leave(uids ...types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		if m.askers[uid].asks() || len(m.ledger.Granted(uid)) == 0 {
			continue
		}
		m.left[uid], m.unwritten = true, true
		m.noteChange(uid)
	}
}

// returns shows what a pod was granted that has a place. Call with mu held.
func (m *Manager) returns(uid types.UID) {
	if m.left[uid] {
		delete(m.left, uid)
		m.unwritten = true
		m.noteChange(uid)
	}
}

// forget frees what a pod was granted, or would be by a call that is under way. Call with mu held.
func (m *Manager) forget(uid types.UID) {
	delete(m.left, uid)
	if m.ledger.Forget(uid) {
		m.noteChange(uid)
		m.unwritten = true
	}
	if a := m.askers[uid]; a != nil {
		a.gone = true
		if a.calls == 0 {
			delete(m.askers, uid)
		}
	}
}

// Allocate decides on a pod, as AllocateRequest has it. Running says that something of the pod runs. A pod that asks
// for nothing that a plugin has or had is granted nothing, without a container. The error is that of the checkpoint
// file or of the context; nothing is granted then.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, placed Placed, running bool) (
	*resourcesv1.AllocateResponse, error) {
	lock, err := m.allocating.Lock(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	a := m.enter(pod.UID, placed)
	defer m.leave(pod.UID, a)
	t := &transaction{m: m, spec: pod, uid: pod.UID, running: running, asker: a}
	return m.decide(ctx, t)
}
