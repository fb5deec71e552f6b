package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// What can be wrong with a request to a Local.
var (
	// ErrInvalid is in errors about the manifest itself.
	ErrInvalid = errors.New("invalid manifest")
	// ErrNotFound is in errors about a pod that was not requested here.
	ErrNotFound = errors.New("not found")
	// ErrConflict is in errors about a name that another source has.
	ErrConflict = errors.New("name in use")
)

// localOrigin is what goes into UIDs in place of a URL.
const localOrigin = "microlet run-pod"

// LocalOptions say where what was asked for is kept.
type LocalOptions struct {
	// Dir holds one file a pod; it is made when it is absent.
	Dir      string
	NodeName string
	// Taken names the source that wants another static pod of this name; empty for none.
	Taken func(name types.NamespacedName) string
	Log   *slog.Logger
}

// Local is the source of the pods that root asked for on the node itself. What was asked for is on disk before the
// request is answered, and is there again after a restart. Its methods may be called at the same time.
type Local struct {
	o LocalOptions

	mu     sync.Mutex
	set    *set
	loaded chan struct{}
	failed error
}

// NewLocal returns the source; Run starts it.
func NewLocal(o LocalOptions) *Local { return &Local{o: o, loaded: make(chan struct{})} }

// Run reports what was asked for before, and ends with ctx. A file that cannot be read keeps the source from being
// complete, as nothing may be concluded then; each request returns its error.
func (l *Local) Run(ctx context.Context, sink Sink) error {
	l.load(sink)
	<-ctx.Done()
	return nil
}

func (l *Local) load(sink Sink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(l.loaded)
	l.set = newSet(podsyncv1.PodSource_POD_SOURCE_LOCAL, sink, l.o.Log)
	pods, err := l.read()
	if err != nil {
		l.failed = err
		l.set.log.Error("pods of run-pod cannot be read", logkey.Dir, l.o.Dir, logkey.Err, err)
		return
	}
	l.set.replace(pods)
}

func (l *Local) read() ([]*v1.Pod, error) {
	if err := os.MkdirAll(l.o.Dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(l.o.Dir)
	if err != nil {
		return nil, err
	}
	var pods []*v1.Pod
	for _, e := range entries {
		path := filepath.Join(l.o.Dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			if err := os.Remove(path); err != nil { // what a write left that did not come to its end
				return nil, err
			}
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		p := &v1.Pod{}
		if err := json.Unmarshal(data, p); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := Validate(p); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		manifest.SetDefaults(p)
		p.TypeMeta = metav1.TypeMeta{}
		pods = append(pods, p)
	}
	return pods, nil
}

// ready waits for the first read.
func (l *Local) ready(ctx context.Context) error {
	select {
	case <-l.loaded:
		return l.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Add runs the pod of a manifest from now on. A pod of the same name that was added before is replaced, unless the
// manifest is the same.
func (l *Local) Add(ctx context.Context, data []byte) (*v1.Pod, podsyncv1.RunPodResponse_Outcome, error) {
	if err := l.ready(ctx); err != nil {
		return nil, 0, err
	}
	p, err := manifest.Parse(data, manifest.Origin{NodeName: l.o.NodeName, URL: localOrigin, Strict: true})
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.named(manifest.FullName(p))
	if before == nil {
		if other := l.o.Taken(manifest.FullName(p)); other != "" {
			return nil, 0, fmt.Errorf("%w: static pod %s/%s of source %s: choose another name", ErrConflict,
				p.Namespace, p.Name, other)
		}
	}
	if old := l.set.pods[p.UID]; old != nil && before == nil {
		return nil, 0, fmt.Errorf("%w: metadata.uid %s is pod %s/%s's: choose another or leave it out", ErrConflict,
			p.UID, old.Namespace, old.Name)
	}
	if before != nil && before.UID == p.UID && equality.Semantic.DeepEqual(before.Spec, p.Spec) &&
		equality.Semantic.DeepEqual(before.Labels, p.Labels) {
		return before, podsyncv1.RunPodResponse_OUTCOME_UNCHANGED, nil
	}
	if err := l.write(p); err != nil {
		return nil, 0, err
	}
	outcome := podsyncv1.RunPodResponse_OUTCOME_CREATED
	if before != nil {
		outcome = podsyncv1.RunPodResponse_OUTCOME_REPLACED
		if before.UID != p.UID {
			if err := l.unlink(before.UID); err != nil {
				return nil, 0, err
			}
		}
	}
	l.replaceOne(before, p)
	return p, outcome, nil
}

// Remove ends a pod that was added, by its UID or its name, with or without the node's name at its end.
func (l *Local) Remove(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.set.pods[types.UID(name)]
	for _, full := range []string{name, name + "-" + strings.ToLower(l.o.NodeName)} {
		if p == nil {
			p = l.named(types.NamespacedName{Namespace: namespace, Name: full})
		}
	}
	if p == nil {
		return nil, fmt.Errorf("%w: %s: run-pod began no pod of this name or UID in namespace %s: see \"microlet pods\", "+
			"and give --namespace if it is in another", ErrNotFound, name, namespace)
	}
	if err := l.unlink(p.UID); err != nil {
		return nil, err
	}
	l.replaceOne(p, nil)
	return p, nil
}

// List returns the pods that are wanted, by namespace and name.
func (l *Local) List(ctx context.Context) ([]*v1.Pod, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.set.pods), func(a, b *v1.Pod) int {
		return strings.Compare(manifest.FullName(a).String(), manifest.FullName(b).String())
	}), nil
}

func (l *Local) named(name types.NamespacedName) *v1.Pod {
	for _, p := range l.set.pods {
		if manifest.FullName(p) == name {
			return p
		}
	}
	return nil
}

// replaceOne removes one pod from what is wanted, and adds another; either may be nil.
func (l *Local) replaceOne(without, with *v1.Pod) {
	var pods []*v1.Pod
	for _, p := range l.set.pods {
		if without == nil || p.UID != without.UID {
			pods = append(pods, p)
		}
	}
	if with != nil {
		pods = append(pods, with)
	}
	l.set.replace(pods)
}

func (l *Local) path(uid types.UID) string { return filepath.Join(l.o.Dir, string(uid)+".json") }

// write keeps a pod: whole, for root alone, and on the disk before it is announced.
func (l *Local) write(p *v1.Pod) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the pod: %w", err)
	}
	a := atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1, Durable: true}
	if err := atomicfile.Write(l.path(p.UID), data, a); err != nil {
		return fmt.Errorf("keep the pod: %w", err)
	}
	return nil
}

func (l *Local) unlink(uid types.UID) error {
	if err := os.Remove(l.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the pod: %w", err)
	}
	return atomicfile.SyncDir(l.o.Dir)
}
