package volumes

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

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/cluster/podcertificate"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/metrics"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// defaultDeadline bounds one pod's mounting and unmounting, as long as the kubelet waits
// for a pod's volumes (2 m 3 s there).
const defaultDeadline = 2 * time.Minute

// maxAtOnce is how many volumes of a pod are worked on at one time. Each may wait for the API server, whose answers the
// pods of the node share.
const maxAtOnce = 64

// Objects are the Secrets and ConfigMaps that volumes name. Their errors are the API's.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// Tokens are the service accounts' tokens, kept until they are due for another.
type Tokens interface {
	Token(ctx context.Context, namespace, serviceAccount string,
		request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Forget(podUID types.UID)
}

// TrustBundles are what is in the cluster's ClusterTrustBundles.
type TrustBundles interface {
	TrustAnchors(ctx context.Context, pod types.UID, p *v1.ClusterTrustBundleProjection) ([]byte, error)
	Forget(pod types.UID)
}

// Certificates are those that signers give pods.
type Certificates interface {
	Bundle(ctx context.Context, p *v1.Pod, at podcertificate.Place,
		source *v1.PodCertificateProjection) (podcertificate.Bundle, error)
	Forget(pod types.UID)
}

// ManagerOptions of a Manager.
type ManagerOptions struct {
	// RootDir is the kubelet's --root-dir.
	RootDir string
	Objects Objects
	Tokens  Tokens
	// TrustBundles and Certificates have those of projected volumes.
	TrustBundles TrustBundles
	Certificates Certificates
	Claims       Claims
	CSI          CSI
	// Expansion grows what is in volumes with their claims. Nil grows nothing.
	Expansion Expansion
	// Foreign runs Operations on what may lie on a file system that hangs.
	Foreign childpool.Runner
	// Mounter mounts what lies in the root folder and is podsync's own.
	Mounter mount.Interface
	// Allocatable is what pods may use of the node, for resourceFieldRef.
	Allocatable func() v1.ResourceList
	// Private returns the node agent's own folder for a pod that may not have anything of it, and nothing for a
	// helper. Nil protects nothing.
	Private func(p *v1.Pod) string
	// Gone is called with each pod whose folder was removed. Default: nothing.
	Gone func(uid types.UID)
	// BootID is the kernel's name of this boot. Files of the API that another boot has written are compared with the
	// API's before a container sees them.
	BootID string
	// NFSMounter is a program that mounts NFS exports, given mount(8) and its arguments. Default: none.
	NFSMounter string
	// Events are sent about the volumes of pods, except for errors. Nil sends none.
	Events record.EventRecorder
	// Metrics measure what is done. Nil shows none.
	Metrics *metrics.Metrics
	// Labels are the SELinux labels of volumes. Nil is a node without SELinux.
	Labels *selinuxlabel.Labels
	// Deadline of one pod's mounting or unmounting; 0 is 2 m.
	Deadline time.Duration
	Log      *slog.Logger
}

// Manager sets up and unmounts volumes. It is safe for concurrent use. The pod's worker makes one call for a pod at a
// time.
type Manager struct {
	opts    ManagerOptions
	calls   *calls
	memory  *memory
	plugins []Plugin
	nodes   *hostPath
	local   *localVolumes
	checked *checkedClaims
	taken   *taken
	// mountInfo is the kernel's list of mounts.
	mountInfo string
	// claims, inline and exports are the notes about claims, inline CSI volumes and NFS volumes.
	claims, inline, exports *notes
}

// setDefaults sets what may be left out.
func (o *ManagerOptions) setDefaults() {
	if o.Deadline == 0 {
		o.Deadline = defaultDeadline
	}
	if o.Private == nil {
		o.Private = func(*v1.Pod) string { return "" }
	}
	if o.Gone == nil {
		o.Gone = func(types.UID) {}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New(nil, nil)
	}
	if o.Allocatable == nil {
		o.Allocatable = func() v1.ResourceList { return nil }
	}
}

// NewManager returns a Manager.
func NewManager(opts ManagerOptions) *Manager {
	opts.setDefaults()
	m := &Manager{
		opts: opts, calls: &calls{}, mountInfo: mountlist.File, checked: &checkedClaims{claims: opts.Claims},
		claims: newNotes(claimName, opts.BootID), inline: newNotes(csivolume.Plugin, opts.BootID),
		exports: newNotes(nfsName, opts.BootID), taken: &taken{pods: map[types.UID]map[string]volumeSize{}},
	}
	m.memory = &memory{
		mounter:     opts.Mounter,
		allocatable: opts.Allocatable,
		scratch:     filepath.Join(opts.RootDir, "plugins", emptyDirName),
	}
	m.nodes = &hostPath{
		foreign: opts.Foreign, private: opts.Private, log: opts.Log, checked: map[types.UID][]string{},
	}
	sent := events{opts.Events}
	m.local = &localVolumes{
		root: opts.RootDir, foreign: opts.Foreign, subPaths: SubPaths{opts.RootDir, opts.Foreign}, private: opts.Private,
		events: sent, log: opts.Log,
	}
	m.plugins = []Plugin{
		&emptyDir{memory: m.memory, foreign: opts.Foreign},
		m.nodes,
		&claim{
			checked: m.checked, csi: opts.CSI, notes: m.claims, labels: opts.Labels, expansion: opts.Expansion,
			events: sent, metrics: opts.Metrics, log: opts.Log,
			kinds: []persistentVolumes{
				&persistentCSI{csi: opts.CSI, root: opts.RootDir, foreign: opts.Foreign, events: sent, log: opts.Log},
				m.local,
				&persistentNFS{foreign: opts.Foreign, mounter: opts.NFSMounter},
				&persistentHostPath{foreign: opts.Foreign, private: opts.Private},
			},
		},
		&inlineCSI{csi: opts.CSI, foreign: opts.Foreign, notes: m.inline, events: sent, log: opts.Log},
		&nfs{foreign: opts.Foreign, mounter: opts.NFSMounter, notes: m.exports},
		imageVolume{},
		&files{m: m, name: "kubernetes.io~projected", inMemory: true, collect: m.projected,
			handles: func(v *v1.Volume) bool { return v.Projected != nil }},
		&files{m: m, name: "kubernetes.io~secret", inMemory: true, collect: m.secretVolume,
			handles: func(v *v1.Volume) bool { return v.Secret != nil }},
		&files{m: m, name: "kubernetes.io~downward-api", inMemory: true, collect: m.downwardVolume,
			handles: func(v *v1.Volume) bool { return v.DownwardAPI != nil }},
		// On disk, as the kubelet's: memory would be charged to a cgroup that does not use it.
		&files{m: m, name: "kubernetes.io~configmap", collect: m.configMapVolume,
			handles: func(v *v1.Volume) bool { return v.ConfigMap != nil }},
	}
	return m
}

// NextRefresh is how long a mounted volume is fresh: 60 to 90 s, so that the pods of a
// node do not ask all at once.
func NextRefresh() time.Duration { return time.Minute + rand.N(30*time.Second) }

// Check reports whether what the pod's volumes need is there: objects with the keys that are
// named, types of paths on the node. What it fetched, Mount finds in the caches. Each volume
// that lacks something is an *Error in the one that is returned.
func (m *Manager) Check(ctx context.Context, p *v1.Pod) error {
	if err := checkNumber(p); err != nil {
		return err
	}
	return m.each(ctx, p, func(ctx context.Context, plugin Plugin, s *Spec) error {
		if _, there := plugin.Existing(s); there {
			return nil
		}
		return plugin.Check(ctx, s)
	})
}

// Mount sets up those volumes of the pod that are not, and leaves the others as they are.
// Each volume that fails is an *Error in the one that is returned.
func (m *Manager) Mount(ctx context.Context, p *v1.Pod) (map[string]Mounted, error) {
	if err := checkNumber(p); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	mounted := make(map[string]Mounted, len(p.Spec.Volumes))
	err := m.each(ctx, p, func(ctx context.Context, plugin Plugin, s *Spec) error {
		m.want(s)
		there, ok := plugin.Existing(s)
		if ok {
			m.has(plugin, s)
		} else {
			err := m.noteLabel(ctx, plugin, s)
			if err != nil {
				return err
			}
			if there, err = m.setUp(ctx, plugin, s); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		mounted[s.Volume.Name] = there
		return nil
	})
	if err != nil {
		return nil, err
	}
	return mounted, nil
}

// Refresh brings those volumes up to date whose sources change.
func (m *Manager) Refresh(ctx context.Context, p *v1.Pod) error {
	return m.each(ctx, p, func(ctx context.Context, plugin Plugin, s *Spec) error {
		if !plugin.Refreshes(s) {
			return nil
		}
		_, err := m.setUp(ctx, plugin, s)
		return err
	})
}

// each does something with every volume of the pod, many at once, within the deadline.
func (m *Manager) each(ctx context.Context, p *v1.Pod, do func(context.Context, Plugin, *Spec) error) error {
	if err := validUID(p.UID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	errs := make([]error, len(p.Spec.Volumes))
	var all sync.WaitGroup
	places := make(chan struct{}, maxAtOnce)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			errs[i] = errorOf(v.Name, context.Cause(ctx))
			continue
		}
		all.Go(func() {
			defer func() { <-places }()
			plugin, s, err := m.volume(p, v)
			if err == nil {
				err = do(ctx, plugin, s)
			}
			if err != nil {
				errs[i] = errorOf(v.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// volume finds the plugin of a volume.
func (m *Manager) volume(p *v1.Pod, v *v1.Volume) (Plugin, *Spec, error) {
	for _, plugin := range m.plugins {
		if plugin.Handles(v) {
			dir := m.podDir(p.UID)
			return plugin, &Spec{
				Pod: p, Volume: v, PluginsDir: filepath.Join(dir, "plugins"),
				Dir: filepath.Join(dir, "volumes", plugin.Name(), v.Name),
			}, nil
		}
	}
	return nil, nil, errNotBuilt
}

// Existing returns the pod's volumes if all of them are mounted and filled, by this process, another one or a kubelet.
// A container that starts again in its pod then needs nothing from the API server, which may be away. What is in the
// volumes may be as old as the last refresh.
func (m *Manager) Existing(p *v1.Pod) (map[string]Mounted, bool) {
	there := make(map[string]Mounted, len(p.Spec.Volumes))
	for i := range p.Spec.Volumes {
		plugin, s, err := m.volume(p, &p.Spec.Volumes[i])
		if err != nil {
			return nil, false
		}
		mounted, ok := plugin.Existing(s)
		if !ok {
			return nil, false
		}
		there[s.Volume.Name] = mounted
	}
	for i := range p.Spec.Volumes {
		if plugin, s, err := m.volume(p, &p.Spec.Volumes[i]); err == nil {
			m.want(s)
			m.has(plugin, s)
		}
	}
	return there, true
}

// Unmount unmounts all volumes of a pod, also those of other processes, and removes its folder. The removal has a
// deadline of its own, because it may have to wait for those of other pods.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) (err error) {
	if err := validUID(uid); err != nil {
		return err
	}
	left := m.opts.Metrics.Leave(uid)
	defer func() { left(err) }()
	m.forget(uid)
	if err := m.unmountVolumes(ctx, uid); err != nil {
		return err
	}
	dir := m.podDir(uid)
	if _, err := removePod.Do(ctx, m.opts.Foreign, dir, removeCall{Dir: dir}); err != nil {
		return fmt.Errorf("remove the pod's folder: %w", err)
	}
	m.opts.Gone(uid)
	return nil
}

// unmountVolumes unmounts the volumes that other pods and nodes may wait for. One that hangs does not keep the others.
func (m *Manager) unmountVolumes(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	return atOnce(
		func() error { return m.local.release(ctx, uid) },
		func() error {
			if m.opts.CSI == nil {
				return nil
			}
			if err := m.opts.CSI.Unpublish(ctx, uid); err != nil {
				return fmt.Errorf("UnmountVolume.TearDown failed: %w", err)
			}
			return nil
		},
		func() error {
			if err := m.unmountExports(ctx, m.podDir(uid)); err != nil {
				return fmt.Errorf("UnmountVolume.TearDown failed: %w", err)
			}
			return nil
		},
	)
}

// atOnce does all of it at once, and returns what has failed.
func atOnce(tasks ...func() error) error {
	errs := make([]error, len(tasks))
	var all sync.WaitGroup
	for i, do := range tasks {
		all.Go(func() { errs[i] = do() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// forget drops what is known of a pod that is gone.
func (m *Manager) forget(pod types.UID) {
	m.opts.Tokens.Forget(pod)
	if m.opts.TrustBundles != nil {
		m.opts.TrustBundles.Forget(pod)
	}
	if m.opts.Certificates != nil {
		m.opts.Certificates.Forget(pod)
	}
	m.nodes.forget(pod)
	m.checked.forget(pod)
	m.taken.forget(pod)
	m.opts.Labels.Forget(pod)
	m.forgetClaims(pod)
	m.inline.forget(pod)
	m.exports.forget(pod)
}

// forgetClaims drops what is known of the volumes that no other pod has.
func (m *Manager) forgetClaims(uid types.UID) {
	for _, pv := range m.claims.forget(uid) {
		if m.opts.Expansion != nil && !m.claims.isHeld(pv, uid) {
			m.opts.Expansion.Forget(pv)
		}
	}
}

// Orphans returns the pods that have a folder; the caller knows which of them are wanted.
func (m *Manager) Orphans() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.opts.RootDir, "pods"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the pods' folders: %w", err)
	}
	uids := make([]types.UID, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && validUID(types.UID(e.Name())) == nil {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

func (m *Manager) podDir(uid types.UID) string {
	return filepath.Join(m.opts.RootDir, "pods", string(uid))
}
