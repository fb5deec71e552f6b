package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/microlet/microlet/services/internal/podutil"
)

var _ Client = (*apiserver)(nil)

var pods = schema.GroupResource{Resource: "pods"}

// apiserver is a fake that keeps pods, applies patches as the real one does and can fail,
// hang or be slow.
type apiserver struct {
	mu       sync.Mutex
	version  int
	pods     map[string]*v1.Pod
	calls    []string                      // "patch web", "delete web", "get web" in order
	busy     map[string]int                // calls under way, by pod
	most     int                           // most calls under way at once
	trouble  func(verb, name string) error // nil: none
	slowness time.Duration                 // of every call
	overlap  bool                          // two calls for one pod at once were seen
	drop     func(*v1.Pod)                 // what this version of the API does not know; nil: nothing
}

func newServer(names ...string) *apiserver {
	a := &apiserver{pods: map[string]*v1.Pod{}, busy: map[string]int{}, version: 100}
	for _, name := range names {
		p := testPod("a")
		p.Name, p.UID = name, types.UID("uid-"+name)
		a.put(p)
	}
	return a
}

func (a *apiserver) put(p *v1.Pod) *v1.Pod {
	a.version++
	p.ResourceVersion = strconv.Itoa(a.version)
	a.pods[p.Name] = p
	return p.DeepCopy()
}

func (a *apiserver) get(name string) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[name] == nil {
		return nil
	}
	return a.pods[name].DeepCopy()
}

// change lets another client write to a pod.
func (a *apiserver) change(name string, f func(*v1.Pod)) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[name].DeepCopy()
	f(p)
	return a.put(p)
}

func (a *apiserver) count(call string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (a *apiserver) do(ctx context.Context, verb, name string, f func() error) error {
	a.mu.Lock()
	a.calls = append(a.calls, verb+" "+name)
	a.busy[name]++
	a.overlap = a.overlap || a.busy[name] > 1
	total := 0
	for _, n := range a.busy {
		total += n
	}
	a.most = max(a.most, total)
	trouble, slowness := a.trouble, a.slowness
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.busy[name]--
		a.mu.Unlock()
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(slowness):
	}
	if trouble != nil {
		if err := trouble(verb, name); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[name] == nil {
		return apierrors.NewNotFound(pods, name)
	}
	return f()
}

func (a *apiserver) PatchPodStatus(ctx context.Context, _, name string, patch []byte) (p *v1.Pod, err error) {
	err = a.do(ctx, "patch", name, func() error {
		var sent struct{ Metadata struct{ UID types.UID } }
		if err := json.Unmarshal(patch, &sent); err != nil {
			return err
		}
		if sent.Metadata.UID != a.pods[name].UID {
			return apierrors.NewConflict(pods, name, fmt.Errorf("uid in precondition: %s", sent.Metadata.UID))
		}
		before, err := json.Marshal(a.pods[name])
		if err != nil {
			return err
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Pod{})
		if err != nil {
			return err
		}
		patched := &v1.Pod{}
		if err := json.Unmarshal(after, patched); err != nil {
			return err
		}
		if a.drop != nil {
			a.drop(patched)
		}
		if back := takenBack(a.pods[name], patched); back != nil {
			return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), name, field.ErrorList{back})
		}
		p = a.put(patched)
		return nil
	})
	return orBlank(p, err)
}

// takenBack is a container's end that a status takes back although the container may not run again, as the apiserver's
// validation sees it. It knows the pod's own policy alone, and no rules of containers.
func takenBack(before, after *v1.Pod) *field.Error {
	again := func(exitCode int32) bool {
		policy := before.Spec.RestartPolicy
		return policy == v1.RestartPolicyAlways || policy == v1.RestartPolicyOnFailure && exitCode != 0
	}
	never := func(int32) bool { return false }
	for _, list := range []struct {
		name          string
		before, after []v1.ContainerStatus
		again         func(int32) bool
	}{
		{"containerStatuses", before.Status.ContainerStatuses, after.Status.ContainerStatuses, again},
		{"initContainerStatuses", before.Status.InitContainerStatuses, after.Status.InitContainerStatuses, again},
		{"ephemeralContainerStatuses", before.Status.EphemeralContainerStatuses, after.Status.EphemeralContainerStatuses,
			never},
	} {
		for i, c := range list.before {
			now := podutil.ContainerStatus(list.after, c.Name)
			if c.State.Terminated != nil && now != nil && now.State.Terminated == nil &&
				!list.again(c.State.Terminated.ExitCode) {
				return field.Forbidden(field.NewPath("status", list.name).Index(i).Child("state"),
					"may not be transitioned to non-terminated state")
			}
		}
	}
	return nil
}

func (a *apiserver) DeletePod(ctx context.Context, _, name string, uid types.UID) error {
	return a.do(ctx, "delete", name, func() error {
		if a.pods[name].UID != uid {
			return apierrors.NewConflict(pods, name, errors.New("uid"))
		}
		delete(a.pods, name)
		return nil
	})
}

func (a *apiserver) GetPod(ctx context.Context, _, name string) (p *v1.Pod, err error) {
	err = a.do(ctx, "get", name, func() error {
		p = a.pods[name].DeepCopy()
		return nil
	})
	return orBlank(p, err)
}

// errBlank has a call answer with an object that has no field of a pod, as client-go reads {}.
var errBlank = errors.New("blank")

func orBlank(p *v1.Pod, err error) (*v1.Pod, error) {
	if errors.Is(err, errBlank) {
		return &v1.Pod{}, nil
	}
	return p, err
}
