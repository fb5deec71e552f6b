package mirror

import (
	"context"
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/poddeletion"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// workers is how many mirrors are made or deleted at one time.
const workers = 4

// NewAPI makes an API of a clientset.
func NewAPI(c kubernetes.Interface) API { return clientset{c} }

type clientset struct{ kubernetes.Interface }

func (c clientset) CreatePod(ctx context.Context, p *v1.Pod) error {
	_, err := c.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

func (c clientset) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c clientset) DeletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	return c.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(uid)),
	})
}

func (c clientset) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	return c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// Run makes and deletes mirror pods until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, m.queue.ShutDown)
	defer stop()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				name, end := m.queue.Get()
				if end {
					return
				}
				m.do(ctx, name)
				m.queue.Done(name)
			}
		})
	}
	all.Wait()
	return nil
}

// do brings one mirror to where it should be, and comes back to it if that fails.
func (m *Manager) do(ctx context.Context, name types.NamespacedName) {
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := m.reconcile(call, name)
	if err == nil {
		m.queue.Forget(name)
		return
	}
	if ctx.Err() != nil {
		return
	}
	m.failures.Inc()
	if n := m.queue.NumRequeues(name); n == 0 || n == 10 {
		m.log.Warn("mirror pod not created or deleted, retrying", logkey.Pod, name.String(), logkey.Attempt, n+1,
			logkey.Err, err)
	}
	m.queue.AddRateLimited(name)
}

func (m *Manager) reconcile(ctx context.Context, name types.NamespacedName) error {
	unidentified := m.identify(ctx, name)
	m.mu.Lock()
	mirror, listed := m.mirrors[name], m.listed
	var wanted *v1.Pod
	if s := m.first(name); s != nil {
		wanted = s.pod
	}
	stale := mirror != nil && m.shown(mirror) == nil && (wanted != nil || m.heard)
	m.mu.Unlock()
	if stale {
		if err := poddeletion.Delete(ctx, m.api, mirror.Namespace, mirror.Name, mirror.UID); err != nil {
			return fmt.Errorf("delete mirror pod: %w", err)
		}
		m.log.Info("mirror pod deleted, it shows no static pod as it is now", logkey.Pod, name.String(),
			logkey.PodUID, mirror.UID)
		m.RemoveMirror(mirror)
		return nil
	}
	if wanted == nil || mirror != nil || !listed {
		return unidentified
	}
	return m.create(ctx, wanted)
}

// identify learns which Node owns the mirrors, so that one that another owns can be found out.
func (m *Manager) identify(ctx context.Context, name types.NamespacedName) error {
	m.mu.Lock()
	mirror := m.mirrors[name]
	if mirror != nil && !m.isOwned(mirror) {
		m.nodeUID = "" // another Node may have the name by now
	}
	m.mu.Unlock()
	if mirror == nil {
		return nil
	}
	_, err := m.node(ctx)
	return err
}

func (m *Manager) create(ctx context.Context, p *v1.Pod) error {
	uid, err := m.node(ctx)
	if err != nil {
		return err
	}
	hash := p.Annotations[manifest.HashAnnotation]
	mirror := *p
	mirror.Annotations = maps.Clone(p.Annotations)
	mirror.Annotations[v1.MirrorPodAnnotationKey] = hash
	// The apiserver's NodeRestriction asks for it, and the mirror goes with the Node.
	mirror.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1.SchemeGroupVersion.String(), Kind: "Node", Name: m.nodeName, UID: uid, Controller: new(true),
	}}
	err = m.api.CreatePod(ctx, &mirror)
	switch {
	case apierrors.IsAlreadyExists(err):
		existing, err := m.api.GetPod(ctx, p.Namespace, p.Name)
		if err != nil {
			return fmt.Errorf("look at the pod that has the mirror's name: %w", err)
		}
		if existing.Annotations[v1.MirrorPodAnnotationKey] == hash {
			return nil // ours, and the watch is about to deliver it
		}
		return fmt.Errorf("another pod of uid %s has the mirror's name: delete it, or rename the static pod",
			existing.UID)
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		m.mu.Lock()
		m.nodeUID = "" // the Node may have been created again
		m.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("create mirror pod: %w", err)
	}
	m.log.Info("mirror pod created", logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID)
	return nil
}

// node returns the UID of the Node, which must be registered.
func (m *Manager) node(ctx context.Context) (types.UID, error) {
	m.mu.Lock()
	uid := m.nodeUID
	m.mu.Unlock()
	if uid != "" {
		return uid, nil
	}
	n, err := m.api.GetNode(ctx, m.nodeName)
	switch {
	case err != nil:
		return "", fmt.Errorf("get node: %w", err)
	case n.DeletionTimestamp != nil:
		return "", fmt.Errorf("node %s is being deleted", m.nodeName)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodeUID = n.UID
	return n.UID, nil
}
