package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"
)

// defaultDeadline bounds one pod's mounting and unmounting, as long as the kubelet waits
// for a pod's volumes (2 m 3 s there).
const defaultDeadline = 2 * time.Minute

// Objects are the Secrets and ConfigMaps that volumes name. Their errors are the API's.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// Tokens are the service accounts' tokens, kept until they are due for another.
type Tokens interface {
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Forget(podUID types.UID)
}

// Options of a Manager.
type Options struct {
	// RootDir is the kubelet's --root-dir.
	RootDir string
	Objects Objects
	Tokens  Tokens
	Mounter mount.Interface
	// Allocatable is what pods may use of the node, for resourceFieldRef.
	Allocatable func() v1.ResourceList
	// Deadline of one pod's mounting or unmounting; 0 is 2 m.
	Deadline time.Duration
	Log      *slog.Logger
}

// Mounted is a volume that is there.
type Mounted struct {
	// HostPath is the folder to mount into containers.
	HostPath string
	// ReadOnly volumes are mounted read-only whatever the container asks for.
	ReadOnly bool
	// SELinuxRelabel says that the runtime is to label the files for the container.
	SELinuxRelabel bool
}

// Error is a volume that could not be set up. Its text is the FailedMount event's.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Manager mounts and unmounts. It is safe for concurrent use; of one pod's calls the
// pod's worker makes one at a time.
type Manager struct{ opts Options }

// New returns a Manager.
func New(opts Options) *Manager {
	if opts.Deadline == 0 {
		opts.Deadline = defaultDeadline
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.Allocatable == nil {
		opts.Allocatable = func() v1.ResourceList { return nil }
	}
	return &Manager{opts: opts}
}

// NextRefresh is how long a mounted volume is fresh: 60 to 90 s, so that the pods of a
// node do not ask all at once.
func NextRefresh() time.Duration { return time.Minute + rand.N(30*time.Second) }

// Check says whether every object that the pod's volumes name exists and holds the keys
// that are named. What it fetched, Mount finds in the caches.
func (m *Manager) Check(ctx context.Context, p *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	for i := range p.Spec.Volumes {
		if _, err := m.collect(ctx, p, &p.Spec.Volumes[i]); err != nil {
			return &Error{Volume: p.Spec.Volumes[i].Name, Err: err}
		}
	}
	return nil
}

// Mount mounts every volume of the pod and brings those that are mounted up to date.
// The first volume that fails is an *Error.
func (m *Manager) Mount(ctx context.Context, p *v1.Pod) (map[string]Mounted, error) {
	if err := validUID(p.UID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	mounted := make(map[string]Mounted, len(p.Spec.Volumes))
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		files, err := m.collect(ctx, p, v)
		if err != nil {
			return nil, &Error{Volume: v.Name, Err: err}
		}
		dir := m.projectedDir(p.UID, v.Name)
		err = abandonable(ctx, func() error { return m.project(p, v.Name, dir, files) })
		if err != nil {
			return nil, &Error{Volume: v.Name, Err: err}
		}
		mounted[v.Name] = projected(dir)
	}
	return mounted, nil
}

// Existing returns the pod's volumes if all of them are mounted and filled, by whomever. A
// container that starts again in its pod then needs nothing from the apiserver, which may
// be away; what is in the volumes may be as old as the last refresh.
func (m *Manager) Existing(p *v1.Pod) (map[string]Mounted, bool) {
	there := make(map[string]Mounted, len(p.Spec.Volumes))
	for i := range p.Spec.Volumes {
		dir := m.projectedDir(p.UID, p.Spec.Volumes[i].Name)
		if mounted, err := m.opts.Mounter.IsMountPoint(dir); err != nil || !mounted {
			return nil, false
		}
		if _, err := os.Stat(filepath.Join(dir, dataLink)); err != nil {
			return nil, false
		}
		there[p.Spec.Volumes[i].Name] = projected(dir)
	}
	return there, true
}

func projected(dir string) Mounted {
	return Mounted{HostPath: dir, ReadOnly: true, SELinuxRelabel: true}
}

// Unmount unmounts all volumes of a pod, whoever mounted them, and removes its folder.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if err := validUID(uid); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	m.opts.Tokens.Forget(uid)
	dir := m.podDir(uid)
	return abandonable(ctx, func() error {
		if err := m.remove(dir); err != nil {
			return fmt.Errorf("remove the pod's folder: %w", err)
		}
		return nil
	})
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

func (m *Manager) projectedDir(uid types.UID, volume string) string {
	return filepath.Join(m.podDir(uid), "volumes", "kubernetes.io~projected", volume)
}

// abandonable runs what may hang in the kernel where it can be left behind: nothing else
// ends a call to a file system that does not answer.
func abandonable(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("given up: %w", context.Cause(ctx))
	}
}
