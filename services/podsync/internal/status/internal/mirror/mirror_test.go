package mirror

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

var name = types.NamespacedName{Namespace: "ns", Name: "static-n"}

// cluster is an apiserver that has pods, and the watch that reports them.
type cluster struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]*v1.Pod
	uids int
	node bool
	down bool
	// blind: it finds no pod to delete, as one that has just started.
	blind   bool
	manager *Manager
	status  map[types.UID]v1.PodStatus
	// delivered are the pods with a status that counts as acknowledged.
	delivered map[types.UID]bool
}

func (c *cluster) CreatePod(_ context.Context, p *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := manifest.FullName(p)
	if c.down {
		return apierrors.NewServiceUnavailable("down")
	}
	if c.pods[key] != nil {
		return apierrors.NewAlreadyExists(v1.Resource("pods"), p.Name)
	}
	if o := p.OwnerReferences; len(o) != 1 || o[0].UID != "node-uid" || o[0].Kind != "Node" || !*o[0].Controller {
		return apierrors.NewForbidden(v1.Resource("pods"), p.Name, nil)
	}
	c.uids++
	stored := p.DeepCopy()
	stored.UID = types.UID("mirror-" + string(rune('0'+c.uids)))
	c.pods[key] = stored
	go c.manager.SetMirror(stored)
	return nil
}

func (c *cluster) GetPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[types.NamespacedName{Namespace: namespace, Name: name}]; p != nil {
		return p, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("pods"), name)
}

func (c *cluster) DeletePod(_ context.Context, namespace, podName string, uid types.UID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: podName}
	p := c.pods[key]
	if c.down {
		return apierrors.NewServiceUnavailable("down")
	}
	if p == nil || c.blind {
		return apierrors.NewNotFound(v1.Resource("pods"), podName)
	}
	if p.UID != uid {
		return apierrors.NewConflict(v1.Resource("pods"), podName, nil)
	}
	delete(c.pods, key)
	go c.manager.RemoveMirror(p)
	return nil
}

func (c *cluster) GetNode(context.Context, string) (*v1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.node {
		return nil, apierrors.NewNotFound(v1.Resource("nodes"), "n")
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-uid"}}, nil
}

func (c *cluster) Set(p *v1.Pod, s v1.PodStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status[p.UID] = s
}
func (c *cluster) UpdateFromAPI(*v1.Pod) {}
func (c *cluster) Delivered(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.delivered[uid]
}
func (c *cluster) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.status, uid)
}

// hash is what the API's mirror of the static pod shows; empty when there is none.
func (c *cluster) hash() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[name]; p != nil {
		return p.Annotations[v1.MirrorPodAnnotationKey]
	}
	return ""
}

func (c *cluster) statuses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, uid := range slices.Sorted(maps.Keys(c.status)) {
		all = append(all, string(uid)+" "+string(c.status[uid].Phase))
	}
	return all
}

func newManager(t *testing.T) (*Manager, *cluster) {
	t.Helper()
	c := &cluster{pods: map[types.NamespacedName]*v1.Pod{}, status: map[types.UID]v1.PodStatus{}, node: true}
	m, err := New(Options{
		NodeName: "n",
		API:      c,
		Statuses: c,
		Log:      slog.New(slog.DiscardHandler),
		Metrics:  prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	c.manager = m
	return m, c
}

func staticPod(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, UID: uid,
		Annotations: map[string]string{manifest.HashAnnotation: string(uid), podutil.ConfigSourceAnnotation: "file"},
	}}
}

// mirrorOf is the mirror, from before podsync's start, of the static pod of that hash.
func mirrorOf(hash string, owner types.UID) *v1.Pod {
	p := staticPod("old")
	p.Annotations[v1.MirrorPodAnnotationKey] = hash
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: "n", UID: owner, Controller: new(true),
	}}
	return p
}

func run(t *testing.T, test func(t *testing.T, m *Manager, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		m, c := newManager(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		test(t, m, c)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (c *cluster) want(t *testing.T, hash string, statuses ...string) {
	t.Helper()
	time.Sleep(10 * time.Second) // of the bubble's time: every retry is over
	synctest.Wait()
	if got := c.hash(); got != hash {
		t.Fatalf("the mirror shows %q, want %q", got, hash)
	}
	if got := c.statuses(); !slices.Equal(got, statuses) {
		t.Fatalf("statuses are %q, want %q", got, statuses)
	}
}

func TestMirrorFollows(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		c.node = false
		m.MirrorsSynced()
		m.Want(staticPod("a"))
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning})
		c.want(t, "")
		c.mu.Lock()
		c.node = true
		c.mu.Unlock()
		c.want(t, "a", "mirror-1 Running")

		// A user deletes the mirror: it is made again, and reported.
		if err := c.DeletePod(t.Context(), name.Namespace, name.Name, "mirror-1"); err != nil {
			t.Fatal(err)
		}
		c.want(t, "a", "mirror-2 Running")

		// A user asks for its deletion with a grace period, which would never end.
		c.mu.Lock()
		dying := c.pods[name].DeepCopy()
		c.mu.Unlock()
		dying.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		m.SetMirror(dying)
		c.want(t, "a", "mirror-3 Running")

		// The manifest changes: the mirror shows the old pod until nothing of it is left.
		m.Want(staticPod("b"))
		m.Set(staticPod("b"), v1.PodStatus{Phase: v1.PodPending})
		c.want(t, "a", "mirror-3 Running")
		m.Forget("a")
		c.want(t, "b", "mirror-4 Pending")
		m.Set(staticPod("b"), v1.PodStatus{Phase: v1.PodSucceeded})
		c.want(t, "b", "mirror-4 Succeeded")

		// The manifest is removed: the mirror goes when every source was heard and nothing of the pod is left.
		m.Forget("b")
		c.want(t, "b", "mirror-4 Succeeded")
		m.AllWanted()
		c.want(t, "")
	})
}

// TestAnAPIServerThatHasJustStarted finds no pod to delete, and has it: the mirror is replaced later. So it is when
// kubeadm changes the manifest of the API server itself.
func TestAnAPIServerThatHasJustStarted(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		m.MirrorsSynced()
		m.Want(staticPod("a"))
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning})
		c.want(t, "a", "mirror-1 Running")
		c.mu.Lock()
		c.blind = true
		c.mu.Unlock()
		m.Want(staticPod("b"))
		m.Set(staticPod("b"), v1.PodStatus{Phase: v1.PodPending})
		m.Forget("a")
		c.want(t, "a", "mirror-1 Running")
		c.mu.Lock()
		c.blind = false
		c.mu.Unlock()
		c.want(t, "b", "mirror-2 Pending")
	})
}

// TestAPodThatComesAgainHasAMirrorOfItsOwn: what its last life came to is not reported of the next.
func TestAPodThatComesAgainHasAMirrorOfItsOwn(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		m.MirrorsSynced()
		m.AllWanted()
		m.Want(staticPod("a"))
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodFailed})
		c.want(t, "a", "mirror-1 Failed")
		m.Forget("a")
		m.Want(staticPod("a"))
		if last, known := m.Last("a"); known {
			t.Errorf("last status %v", last)
		}
		c.want(t, "a")
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning})
		c.want(t, "a", "mirror-2 Running")
	})
}

// TestNothingIsConcludedBeforeEverySourceWasHeard: the mirrors of a control plane outlive podsync's restarts.
func TestNothingIsConcludedBeforeEverySourceWasHeard(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		old := mirrorOf("a", "node-uid")
		began := metav1.NewTime(time.Now().Add(-time.Hour))
		old.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &began}
		c.pods[name] = old
		m.SetMirror(old)
		m.MirrorsSynced()
		c.want(t, "a")
		m.Want(staticPod("a"))
		if last, ok := m.Last("a"); !ok || last.Phase != v1.PodRunning {
			t.Errorf("last status is %v, %v", last, ok)
		}
		now := metav1.Now()
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning, StartTime: &now})
		m.AllWanted()
		c.want(t, "a", "old Running")
	})
}

func TestStartTimeIsKeptWhenTheMirrorComesLate(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		now, began := metav1.Now(), metav1.NewTime(time.Now().Add(-time.Hour))
		m.Want(staticPod("a"))
		m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning, StartTime: &now})
		old := mirrorOf("a", "node-uid")
		old.Status.StartTime = &began
		c.pods[name] = old
		m.SetMirror(old)
		c.want(t, "a", "old Running")
		if s := c.status["old"]; !s.StartTime.Equal(&began) {
			t.Errorf("start time is %v", s.StartTime)
		}
	})
}

func TestANameThatAnotherPodHas(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		c.pods[name] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name.Name, UID: "other"}}
		m.MirrorsSynced()
		m.Want(staticPod("a"))
		c.want(t, "")
		c.mu.Lock()
		delete(c.pods, name)
		c.mu.Unlock()
		c.want(t, "a")
	})
}

func TestStandalone(t *testing.T) {
	m, err := New(Options{NodeName: "n", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	m.Want(staticPod("a"))
	m.Set(staticPod("a"), v1.PodStatus{Phase: v1.PodRunning})
	m.AllWanted()
	if _, s := m.Get("a"); s == nil || s.Phase != v1.PodRunning {
		t.Errorf("status is %v", s)
	}
	m.Forget("a")
	if p, _ := m.Get("a"); p != nil {
		t.Error("not forgotten")
	}
}

func TestAStatusIsDeliveredByItsMirror(t *testing.T) {
	run(t, func(t *testing.T, m *Manager, c *cluster) {
		m.Want(staticPod("s"))
		if !m.Delivered("s") {
			t.Error("a status is waited for that has no mirror to show it")
		}
		m.AllWanted()
		m.MirrorsSynced()
		synctest.Wait()
		m.Set(staticPod("s"), v1.PodStatus{Phase: v1.PodRunning})
		if m.Delivered("s") {
			t.Error("the mirror counts as delivered although the API server has not acknowledged it")
		}
		c.mu.Lock()
		c.delivered = map[types.UID]bool{"mirror-1": true}
		c.mu.Unlock()
		if !m.Delivered("s") {
			t.Error("what the API server has acknowledged is not what counts")
		}
	})
}
