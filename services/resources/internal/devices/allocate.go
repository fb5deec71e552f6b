package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/demand"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/ledger"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/plugin"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/registry"
)

const (
	// reason is the kubelet's for each pod that cannot have its devices.
	reason = "UnexpectedAdmissionError"
	// maxPod bounds what a pod is granted, as protobuf: it is one message of the bus, which has at most 1 MiB.
	maxPod = 1<<20 - 64<<10
)

// errGone ends the call of a pod that was forgotten meanwhile.
var errGone = errors.New("the pod is gone")

// asker is a pod that asks for devices.
type asker struct {
	// placed is when the pods were looked up that had a place, this one among them.
	placed time.Time
	// waits is since when the pod waits for a plugin; zero if it does not.
	waits time.Time
	// calls are under way.
	calls int
	// gone: what the call grants is free again.
	gone bool
}

// asks reports whether a call is under way; a is nil for a pod without one.
func (a *asker) asks() bool { return a != nil && a.calls > 0 }

// enter notes a call, and frees what pods have that have no place.
func (m *Manager) enter(uid types.UID, p Placed) *asker {
	at := p.At
	if at.IsZero() || at.Unix() == 0 {
		at = time.Now()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.askers[uid]
	if a == nil || a.gone {
		a = &asker{}
		m.askers[uid] = a
	}
	a.calls++
	if at.After(a.placed) {
		a.placed = at
	}
	placed := make(map[types.UID]bool, len(p.UIDs)+1)
	placed[uid] = true
	for _, other := range p.UIDs {
		placed[other] = true
	}
	for other := range placed {
		m.returns(other)
	}
	for _, other := range m.others(placed) {
		// A pod that asked later was not looked for.
		if o := m.askers[other]; o == nil || o.placed.Before(at) {
			m.forget(other)
		}
	}
	return a
}

// others are the pods that have something, or ask for it, and are not among these. Call with mu held.
func (m *Manager) others(but map[types.UID]bool) []types.UID {
	var found []types.UID
	for uid := range m.ledger.Pods() {
		if !but[uid] {
			found = append(found, uid)
		}
	}
	for uid := range m.askers {
		if !but[uid] {
			found = append(found, uid)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// leave ends a call and its reservations.
func (m *Manager) leave(uid types.UID, a *asker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger.Release(uid)
	if a.calls--; a.calls == 0 && a.gone && m.askers[uid] == a {
		delete(m.askers, uid)
	}
}

// awayError says that a plugin is not there or does not answer. The pod may wait for it.
type awayError struct {
	resource, message string
	// as is what the kubelet says then.
	as error
}

func (e *awayError) Error() string { return e.as.Error() }

// refusedError says that the pod cannot have what it asks for.
type refusedError struct{ error }

func refuse(format string, args ...any) error { return refusedError{fmt.Errorf(format, args...)} }

// decide carries out the transaction, and makes an answer of what became of it.
func (m *Manager) decide(ctx context.Context, t *transaction) (*resourcesv1.AllocateResponse, error) {
	err := t.run(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var (
		away    *awayError
		refused refusedError
	)
	switch {
	case err == nil, t.running && !errors.Is(err, errGone):
		// A pod that runs keeps what it has, and starts its containers with that.
		if err != nil {
			m.o.Log.Warn("a pod that runs has not all devices that it asks for", logkey.PodUID, t.uid,
				logkey.Err, err)
		}
		granted := m.Pod(t.uid)
		if granted == nil {
			granted = &resourcesv1.PodResources{}
		}
		m.waited(t.asker)
		return &resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Granted{Granted: granted}}, nil
	case errors.As(err, &away):
		if m.waits(t.asker) {
			return &resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Wait_{
				Wait: &resourcesv1.AllocateResponse_Wait{Resource: away.resource, Message: away.message},
			}}, nil
		}
	case !errors.As(err, &refused):
		return nil, err
	}
	m.waited(t.asker)
	return &resourcesv1.AllocateResponse{Decision: &resourcesv1.AllocateResponse_Rejection_{
		Rejection: &resourcesv1.AllocateResponse_Rejection{
			Reason: reason, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
		},
	}}, nil
}

// waits reports whether a pod waits on, from now or from when it first had to.
func (m *Manager) waits(a *asker) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.waits.IsZero() {
		a.waits = time.Now()
	}
	return time.Since(a.waits) < m.o.Wait
}

func (m *Manager) waited(a *asker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a.waits = time.Time{}
}

// transaction grants a pod all that it asks for, or nothing.
type transaction struct {
	m       *Manager
	spec    *v1.Pod
	uid     types.UID
	running bool
	asker   *asker

	// had is what the pod was granted before.
	had ledger.Pod
	// calls are to be made.
	calls []*call
}

// call asks a plugin for devices that are reserved.
type call struct {
	container, resource string
	plugin              plugin.Plugin
	grant               ledger.Grant
}

func (t *transaction) run(ctx context.Context) error {
	t.m.mu.Lock()
	t.had = t.m.ledger.Granted(t.uid)
	containers := demand.Of(t.spec, func(name string) bool { return t.m.registry.Resource(name) != nil })
	t.m.mu.Unlock()
	if err := t.reserve(ctx, containers); err != nil {
		return err
	}
	if len(t.calls) == 0 {
		return nil
	}
	if err := t.ask(ctx); err != nil {
		return err
	}
	return t.commit()
}

// reserve chooses the devices of all containers. What an init container has, later ones may have too, until one has it
// that does not end before them.
func (t *transaction) reserve(ctx context.Context, containers []demand.Container) error {
	reusable := map[string]map[string]bool{}
	for _, c := range containers {
		for _, count := range c.Counts {
			if reusable[count.Resource] == nil {
				reusable[count.Resource] = map[string]bool{}
			}
			reuse := reusable[count.Resource]
			has, err := t.choose(ctx, c.Name, count, reuse)
			if err != nil {
				return err
			}
			for id := range has.Devices {
				if c.Ends {
					reuse[id] = true
				} else {
					delete(reuse, id)
				}
			}
		}
	}
	return nil
}

// choose returns the devices that a container has, or reserves them.
func (t *transaction) choose(ctx context.Context, container string, count demand.Count, reuse map[string]bool) (
	ledger.Grant, error) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	r := t.m.registry.Resource(count.Resource)
	if had, has := t.had.Of(container, count.Resource); has {
		if t.running {
			return had, nil
		}
		return had, t.stillGood(r, container, had, count)
	}
	if err := usable(r); err != nil {
		return ledger.Grant{}, err
	}
	ids, err := t.pick(ctx, r, count, reuse)
	if err != nil {
		return ledger.Grant{}, err
	}
	p := r.Primary()
	g := ledger.Grant{Devices: make(map[string][]int64, len(ids))}
	for _, id := range ids {
		g.Devices[id] = p.Devices[id].NUMA
	}
	t.m.ledger.Reserve(t.uid, r.Name, ids)
	t.calls = append(t.calls, &call{container: container, resource: r.Name, plugin: p.Conn, grant: g})
	return g, nil
}

// usable returns why no device of a resource can be handed out. Call with mu held.
func usable(r *registry.Resource) error {
	if r.Primary() == nil {
		as := fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", r.Name)
		if !r.Registered() {
			as = fmt.Errorf("cannot allocate unregistered device %s", r.Name)
		}
		return &awayError{r.Name, fmt.Sprintf("the device plugin of %s is away: %s", r.Name, r.Problem()), as}
	}
	if len(r.Healthy()) == 0 {
		return refuse("no healthy devices present; cannot allocate unhealthy devices %s", r.Name)
	}
	return nil
}

// stillGood returns why a container that starts cannot keep what it has. Call with mu held.
func (t *transaction) stillGood(r *registry.Resource, container string, had ledger.Grant, count demand.Count) error {
	if int64(len(had.Devices)) != count.Devices {
		return refuse("pod %q container %q changed request for resource %q from %d to %d", t.uid, container, r.Name,
			len(had.Devices), count.Devices)
	}
	if err := usable(r); err != nil {
		return err
	}
	for id := range had.Devices {
		if !r.Primary().Devices[id].Healthy {
			return refuse("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", r.Name)
		}
	}
	return nil
}

// pick chooses healthy devices: those that can be reused first, then those that the plugin prefers. It is called with
// mu held, and gives it up while it asks the plugin.
func (t *transaction) pick(ctx context.Context, r *registry.Resource, count demand.Count, reuse map[string]bool) (
	[]string, error) {
	var reused []string
	for _, id := range r.Healthy() {
		if reuse[id] && int64(len(reused)) < count.Devices {
			reused = append(reused, id)
		}
	}
	needed := count.Devices - int64(len(reused))
	free, err := t.free(r, needed)
	if err != nil || needed == 0 {
		return reused, err
	}
	var preferred []string
	if p := r.Primary(); p.Conn.Prefers() && needed < int64(len(free)) {
		t.m.mu.Unlock()
		preferred, err = p.Conn.Preferred(ctx, sorted(free, reused), reused, int(count.Devices))
		t.m.mu.Lock()
		if err != nil {
			return nil, callFailed(r.Name, err)
		}
		// The plugin may be away by now or have reported others, and pods may have taken some.
		if err := usable(r); err != nil {
			return nil, err
		}
		if free, err = t.free(r, needed); err != nil {
			return nil, err
		}
	}
	return sorted(first(needed, preferred, free), reused), nil
}

// first returns so many of the free devices, which are in order: those first that are preferred.
func first(n int64, preferred, free []string) []string {
	chosen := make(map[string]bool, n)
	for _, id := range slices.Concat(preferred, free) {
		if int64(len(chosen)) == n {
			break
		}
		if _, is := slices.BinarySearch(free, id); is {
			chosen[id] = true
		}
	}
	return sortedKeys(chosen)
}

// free returns the healthy devices that no pod has, in order, if they are enough. Call with mu held.
func (t *transaction) free(r *registry.Resource, needed int64) ([]string, error) {
	held, own := t.m.ledger.Held(r.Name, t.uid), t.m.ledger.HeldBy(t.uid, r.Name)
	free := slices.DeleteFunc(slices.Clone(r.Healthy()), func(id string) bool { return held[id] || own[id] })
	if int64(len(free)) < needed {
		return nil, refuse("requested number of devices unavailable for %s. Requested: %d, Available: %d", r.Name, needed,
			len(free))
	}
	return free, nil
}

func callFailed(resource string, err error) error {
	if plugin.Away(err) {
		return &awayError{resource, fmt.Sprintf("the device plugin of %s does not answer: %v", resource, err), err}
	}
	return refusedError{err}
}

// commit grants what is reserved once it is on the disk.
func (t *transaction) commit() error {
	pod := t.had
	for _, c := range t.calls {
		pod = pod.With(c.container, c.resource, c.grant)
	}
	pod = pod.Ordered(names(t.spec))
	t.m.mu.Lock()
	if n := proto.Size(t.m.resources(pod)); n > maxPod {
		t.m.mu.Unlock()
		return refuse("what device plugins say has %d bytes for the pod, at most %d are possible", n, maxPod)
	}
	t.m.ledger.Store(t.uid, pod)
	t.m.mu.Unlock()

	err := t.m.write()

	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if err == nil && t.asker.gone {
		err = errGone
	}
	if err != nil {
		// The file may have what was not granted.
		t.m.ledger.Release(t.uid)
		t.m.unwritten = true
		t.m.awaken()
		return err
	}
	t.m.ledger.Grant(t.uid, pod)
	t.m.noteChange(t.uid)
	return nil
}

func names(pod *v1.Pod) []string {
	var all []string
	for i := range pod.Spec.InitContainers {
		all = append(all, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Name)
	}
	return all
}
