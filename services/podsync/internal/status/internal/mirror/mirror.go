// Package mirror creates and deletes the mirror pods that show static pods in the API.
//
// Each static pod has one mirror pod with its hash and its status, owned by the Node. If a mirror pod is deleted, it
// is created again, and nothing else happens. If its status is changed, nothing else happens either. If its static pod
// has another hash or is gone, the mirror pod is deleted, but only after every source has delivered its list. If two
// static pods have the same name, the mirror pod shows the first one until nothing of it is left. Without an API server
// there are no mirror pods.
package mirror

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

const (
	// firstRetry is what the kubelet waits between two looks whether the Node is registered.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	timeout    = 10 * time.Second
)

// Statuses brings the statuses of mirror pods to the API.
type Statuses interface {
	Set(p *v1.Pod, s v1.PodStatus)
	UpdateFromAPI(p *v1.Pod)
	Delivered(uid types.UID) bool
	Forget(uid types.UID)
}

// API is what mirroring asks of the apiserver.
type API interface {
	CreatePod(ctx context.Context, p *v1.Pod) error
	GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// DeletePod deletes at once the pod of this UID, and no other of the same name.
	DeletePod(ctx context.Context, namespace, name string, uid types.UID) error
	GetNode(ctx context.Context, name string) (*v1.Node, error)
}

// Options of a Manager.
type Options struct {
	NodeName string
	// API is only used by Run.
	API      API
	Statuses Statuses
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// static is a static pod of this node.
type static struct {
	pod *v1.Pod
	// status is what was reported of it last.
	status *v1.PodStatus
}

// Manager mirrors static pods. Its methods may be called at the same time, and none of them waits.
type Manager struct {
	nodeName string
	api      API
	statuses Statuses
	log      *slog.Logger
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
	failures prometheus.Counter

	mu      sync.Mutex
	statics map[types.UID]*static
	// wanted are the static pods of a name, in the order in which they came.
	wanted map[types.NamespacedName][]types.UID
	// mirrors are as the API has them.
	mirrors map[types.NamespacedName]*v1.Pod
	// outdated are mirrors without their static pod, by their UID in the API. If the same pod comes again it has a mirror
	// of its own: the old one's status is not its.
	outdated map[types.UID]bool
	// listed: all mirrors of the API are known; heard: all static pods are.
	listed, heard bool
	nodeUID       types.UID
}

// New returns a manager; without Run it keeps statuses and mirrors nothing.
func New(o Options) (*Manager, error) {
	m := &Manager{
		nodeName: o.NodeName,
		api:      o.API,
		statuses: o.Statuses,
		log:      o.Log,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry),
		),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_podsync_mirror_failures_total",
			Help: "Attempts to create or delete a mirror pod that failed and are repeated.",
		}),
		statics:  map[types.UID]*static{},
		wanted:   map[types.NamespacedName][]types.UID{},
		mirrors:  map[types.NamespacedName]*v1.Pod{},
		outdated: map[types.UID]bool{},
	}
	return m, o.Metrics.Register(m.failures)
}

// Want announces a static pod, or a newer version of it.
func (m *Manager) Want(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := manifest.FullName(p)
	if known := m.statics[p.UID]; known != nil {
		known.pod = p
	} else {
		m.statics[p.UID] = &static{pod: p}
		m.wanted[name] = append(m.wanted[name], p.UID)
	}
	m.queue.Add(name)
}

// AllWanted reports that every source of static pods has been heard.
func (m *Manager) AllWanted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = true
	for name := range m.mirrors {
		m.queue.Add(name)
	}
}

// SetMirror implements sources.Mirrors.
func (m *Manager) SetMirror(p *v1.Pod) {
	m.mu.Lock()
	name := manifest.FullName(p)
	old := m.mirrors[name]
	m.mirrors[name] = p
	if old != nil && old.UID != p.UID {
		delete(m.outdated, old.UID)
		m.statuses.Forget(old.UID)
	}
	shown := m.shown(p)
	if shown != nil && (old == nil || old.UID != p.UID) {
		m.show(shown, p)
	}
	m.mu.Unlock()
	if shown != nil {
		m.statuses.UpdateFromAPI(p)
	}
	m.queue.Add(name)
}

// RemoveMirror implements sources.Mirrors.
func (m *Manager) RemoveMirror(p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := manifest.FullName(p)
	if now := m.mirrors[name]; now != nil && now.UID == p.UID {
		delete(m.mirrors, name)
		m.nodeUID = "" // it may have gone with its Node, which has another UID when it is back
	}
	delete(m.outdated, p.UID)
	m.statuses.Forget(p.UID)
	m.queue.Add(name)
}

// MirrorsSynced implements sources.Mirrors.
func (m *Manager) MirrorsSynced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = true
	for name := range m.wanted {
		m.queue.Add(name)
	}
}

// Get returns a static pod and what was reported of it last, which is nil before that.
func (m *Manager) Get(uid types.UID) (*v1.Pod, *v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statics[uid]
	if s == nil {
		return nil, nil
	}
	return s.pod, s.status.DeepCopy()
}

// Wants reports whether this is a static pod that was announced and not forgotten since.
func (m *Manager) Wants(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.statics[uid] != nil
}

// Set keeps the newest status of a static pod, and shows it in its mirror.
func (m *Manager) Set(p *v1.Pod, status v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statics[p.UID]
	if s == nil {
		return
	}
	s.status = status.DeepCopy()
	if mirror := m.mirrorOf(s); mirror != nil {
		m.show(s, mirror)
	}
}

// Last returns the status of a static pod that was reported last, and whether there is one. After a restart the mirror
// remembers some of what was reported of the static pod.
func (m *Manager) Last(uid types.UID) (v1.PodStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statics[uid]
	if s == nil {
		return v1.PodStatus{}, false
	}
	if s.status != nil {
		return *s.status.DeepCopy(), true
	}
	if mirror := m.mirrorOf(s); mirror != nil && mirror.Status.StartTime != nil {
		return remembered(s.pod, &mirror.Status), true
	}
	return v1.PodStatus{}, false
}

// Delivered reports whether the API server has the newest status of a static pod. It is true for one that has no mirror
// to show it.
func (m *Manager) Delivered(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statics[uid]
	if s == nil {
		return true
	}
	mirror := m.mirrorOf(s)
	return mirror == nil || m.statuses.Delivered(mirror.UID)
}

// Forget drops a static pod of which nothing is left on the node. Its mirror is deleted.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statics[uid]
	if s == nil {
		return
	}
	if mirror := m.mirrorOf(s); mirror != nil {
		m.outdated[mirror.UID] = true
	}
	name := manifest.FullName(s.pod)
	delete(m.statics, uid)
	m.wanted[name] = slices.DeleteFunc(m.wanted[name], func(u types.UID) bool { return u == uid })
	if len(m.wanted[name]) == 0 {
		delete(m.wanted, name)
	}
	m.queue.Add(name)
}

// mirrorOf returns the mirror that shows the static pod, nil if none does. The caller holds mu.
func (m *Manager) mirrorOf(s *static) *v1.Pod {
	if mirror := m.mirrors[manifest.FullName(s.pod)]; mirror != nil && m.shown(mirror) == s {
		return mirror
	}
	return nil
}

// shown is the static pod that the mirror shows, nil if it shows none that is wanted. The caller holds mu.
func (m *Manager) shown(mirror *v1.Pod) *static {
	s := m.first(manifest.FullName(mirror))
	if s == nil || mirror.DeletionTimestamp != nil || !m.isOwned(mirror) || m.outdated[mirror.UID] ||
		mirror.Annotations[v1.MirrorPodAnnotationKey] != s.pod.Annotations[manifest.HashAnnotation] {
		return nil
	}
	return s
}

// first is the static pod of a name that came first, or nil. The caller holds mu.
func (m *Manager) first(name types.NamespacedName) *static {
	if uids := m.wanted[name]; len(uids) > 0 {
		return m.statics[uids[0]]
	}
	return nil
}

// show writes to the API what has become of the static pod. The caller holds mu.
func (m *Manager) show(s *static, mirror *v1.Pod) {
	if s.status == nil {
		return
	}
	// What was reported before a restart came with the mirror only now, and a pod starts once.
	if before := mirror.Status.StartTime; before != nil && before.Before(s.status.StartTime) {
		s.status.StartTime = before.DeepCopy()
	}
	m.statuses.Set(mirror, *s.status.DeepCopy())
}

// Source names the source that wants a static pod of this name; empty when none does.
func (m *Manager) Source(name types.NamespacedName) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.first(name); s != nil {
		return s.pod.Annotations[podutil.ConfigSourceAnnotation]
	}
	return ""
}
