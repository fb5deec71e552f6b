// Package growth grows what is in a volume after its claim was expanded.
//
// A controller grows the volume itself, and says in the claim's status that the node is to do the rest. The node does
// it, and writes into that status, when a pod gets the volume, and later whenever the claim of a running pod is looked
// at. What fails is done again then, unless the driver says that the volume cannot grow while it is in use.
//
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-storage/1790-recover-resize-failure
package growth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// timeout bounds one question to the API server.
	timeout = 10 * time.Second
	// notRequired is an annotation of claims whose volume other nodes need not grow.
	notRequired = "volume.kubernetes.io/node-expansion-not-required"
)

// The Events' reasons are the kubelet's.
const (
	reasonSuccessful = "FileSystemResizeSuccessful"
	reasonReadOnly   = "FileSystemResizeFailed"
	reasonFailed     = "VolumeResizeFailed"
)

// Errors of a call. After any other error it is unknown what was done.
var (
	// ErrNotSupported: the driver grows nothing on nodes.
	ErrNotSupported = errors.New("NodeExpand is not supported")
	// ErrInUse: the volume cannot grow while it is in use.
	ErrInUse = errors.New("the volume cannot be expanded while it is in use")
	// ErrInfeasible: the volume cannot grow to this size.
	ErrInfeasible = errors.New("the size is infeasible")
	// ErrFinal: the call has ended without success.
	ErrFinal = errors.New("the expansion has failed")
)

// Volume is a claimed volume that a pod has.
type Volume struct {
	Pod *v1.Pod
	// Claim is as it was read last, and PV its PersistentVolume.
	Claim    *v1.PersistentVolumeClaim
	PV       *v1.PersistentVolume
	ReadOnly bool
	// Grow grows what is in the volume. Its error is one of those above, with its cause, if it is known what was done.
	Grow func(ctx context.Context, size resource.Quantity) error
}

func (v *Volume) desired() resource.Quantity { return *v.PV.Spec.Capacity.Storage() }

// Options of an Expander.
type Options struct {
	// Client is nil on a node without an API server, which has no claims.
	Client kubernetes.Interface
	// Node is the node's name.
	Node   string
	Events record.EventRecorder
	Log    *slog.Logger
}

// Expander has volumes expanded. It is safe for concurrent use.
type Expander struct {
	o Options

	mu    sync.Mutex
	known map[string]*state // by PersistentVolume
}

// state is what is known of a volume as long as the node has it.
type state struct {
	// expands has a token while an expansion is under way, which alone changes the rest.
	expands chan struct{}
	// size is what the volume was grown to; zero is unknown.
	size resource.Quantity
	// refused: the driver has said that it cannot grow while it is in use.
	refused bool
	// failed: an attempt has failed for good.
	failed bool
}

// New returns an Expander that knows nothing yet.
func New(o Options) *Expander {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Expander{o: o, known: map[string]*state{}}
}

// Forget forgets a volume that the node has no more.
func (e *Expander) Forget(pv string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.known, pv)
}

// begin waits until no other pod expands the volume.
func (e *Expander) begin(ctx context.Context, v *Volume) (s *state, end func(), err error) {
	e.mu.Lock()
	s = e.known[v.PV.Name]
	if s == nil {
		s = &state{expands: make(chan struct{}, 1)}
		e.known[v.PV.Name] = s
	}
	e.mu.Unlock()
	select {
	case s.expands <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("another pod's expansion is under way: %w", context.Cause(ctx))
	}
	if s.size.IsZero() {
		s.size = v.Claim.Status.Capacity.Storage().DeepCopy()
	}
	return s, func() { <-s.expands }, nil
}

// DuringMount grows a volume that was just published, if its claim waits for that. Its error keeps the pod from the
// volume.
func (e *Expander) DuringMount(ctx context.Context, v *Volume) error {
	s, end, err := e.begin(ctx, v)
	if err != nil {
		return err
	}
	defer end()
	if v.Claim.Status.Capacity.Storage().Cmp(v.desired()) >= 0 {
		return nil
	}
	if v.ReadOnly {
		const message = "MountVolume.NodeExpandVolume failed for volume %q requested read-only file system"
		e.o.Events.Eventf(v.Pod, v1.EventTypeWarning, reasonReadOnly, message, v.PV.Name)
		e.o.Events.Eventf(v.Claim, v1.EventTypeWarning, reasonReadOnly, message, v.PV.Name)
		return nil
	}
	return e.expand(ctx, s, v)
}

// Online grows the volume of a running pod, if its claim was expanded. A failure is reported by an Event, and the
// next call tries again.
func (e *Expander) Online(ctx context.Context, v *Volume) {
	s, end, err := e.begin(ctx, v)
	if err != nil {
		return
	}
	defer end()
	if v.ReadOnly || s.refused || s.size.IsZero() || s.size.Cmp(v.desired()) >= 0 {
		return
	}
	if err := e.expand(ctx, s, v); err != nil && ctx.Err() == nil {
		e.o.Log.Warn("a volume is not expanded", "volume", v.PV.Name, logkey.PodUID, v.Pod.UID, logkey.Err, err)
		e.o.Events.Eventf(v.Pod, v1.EventTypeWarning, reasonFailed,
			"NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", v.PV.Name, err)
	}
}

// expand does what the claim's status asks for, as the API server has it now.
func (e *Expander) expand(ctx context.Context, s *state, v *Volume) error {
	read, err := e.read(ctx, v)
	if err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %w", err)
	}
	now := *v
	now.Claim = read
	a := attempt{Expander: e, state: s, Volume: &now, status: read.Status.AllocatedResourceStatuses[v1.ResourceStorage]}
	if a.status == "" && read.Status.AllocatedResources == nil {
		a.size = v.desired() // an old controller says no more
		return a.grow(ctx)
	}
	a.size = read.Status.AllocatedResources[v1.ResourceStorage]
	a.grown = a.status == "" && read.Status.Capacity.Storage().Cmp(a.size) >= 0
	everywhere := a.grown && slices.Contains(read.Spec.AccessModes, v1.ReadWriteMany) &&
		!metav1.HasAnnotation(read.ObjectMeta, notRequired)
	waits := a.status == v1.PersistentVolumeClaimNodeResizePending ||
		a.status == v1.PersistentVolumeClaimNodeResizeInProgress
	switch {
	case everywhere || waits:
		return a.growAndReport(ctx)
	case a.grown:
		s.size = a.size
	}
	return nil
}

func (e *Expander) read(ctx context.Context, v *Volume) (*v1.PersistentVolumeClaim, error) {
	if e.o.Client == nil {
		return nil, errors.New("the node has no API server to read it from")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.o.Client.CoreV1().PersistentVolumeClaims(v.Claim.Namespace).Get(ctx, v.Claim.Name, metav1.GetOptions{})
}

// attempt is one attempt to grow a volume to a size.
type attempt struct {
	*Expander
	*state
	*Volume
	size   resource.Quantity
	status v1.ClaimResourceStatus
	// grown: the claim has the size already, since another node has expanded the volume.
	grown bool
}

// grow is for a controller that knows of no recovery from failures.
func (a *attempt) grow(ctx context.Context) error {
	err := a.Grow(ctx, a.size)
	switch {
	case errors.Is(err, ErrNotSupported):
		a.state.size = a.size
		return nil
	case errors.Is(err, ErrInUse):
		a.refuse(err)
		return nil
	case err != nil:
		return err
	}
	return a.succeed(ctx, a.Claim.Status.Capacity.Storage().Cmp(a.size) >= 0)
}

// growAndReport grows the volume, and reports the progress in the status of the claim.
func (a *attempt) growAndReport(ctx context.Context) error {
	if !a.grown {
		if err := a.patch(ctx, inProgress, true); err != nil {
			return err
		}
	}
	err := a.Grow(ctx, a.size)
	switch {
	case err == nil:
		return a.succeed(ctx, a.grown)
	case errors.Is(err, ErrNotSupported) && a.grown:
		a.state.size = a.size
		return nil
	}
	a.reportFailure(ctx, err)
	if errors.Is(err, ErrInUse) {
		a.refuse(err)
		return nil
	}
	return err
}

// reportFailure reports in the status of the claim that the expansion failed, if that is certain.
func (a *attempt) reportFailure(ctx context.Context, err error) {
	if !final(err) {
		return
	}
	// After a failure and a change of the requested size, the controller decides.
	infeasible := errors.Is(err, ErrInfeasible) || a.failed && a.Claim.Spec.Resources.Requests.Storage().Cmp(a.size) != 0
	a.failed = true
	if err := a.patch(ctx, failed(err, infeasible), false); err != nil {
		a.o.Log.Warn("the claim does not show that its expansion has failed", "volume", a.PV.Name, logkey.Err, err)
	}
}

func final(err error) bool {
	return slices.ContainsFunc([]error{ErrNotSupported, ErrInUse, ErrInfeasible, ErrFinal}, func(kind error) bool {
		return errors.Is(err, kind)
	})
}

func (a *attempt) refuse(err error) {
	a.refused = true
	a.o.Log.Warn("a volume is expanded when no pod has it", "volume", a.PV.Name, logkey.Err, err)
}

func (a *attempt) succeed(ctx context.Context, grown bool) error {
	const message = "MountVolume.NodeExpandVolume succeeded for volume %q %s"
	a.o.Events.Eventf(a.Pod, v1.EventTypeNormal, reasonSuccessful, message, a.PV.Name, a.o.Node)
	a.o.Events.Eventf(a.Claim, v1.EventTypeNormal, reasonSuccessful, message, a.PV.Name, a.o.Node)
	a.failed = false
	if !grown {
		if err := a.patch(ctx, finished(a.size), true); err != nil {
			return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
		}
	}
	a.state.size = a.size
	return nil
}

// As makes err one of the kinds above, with its own text.
func As(kind, err error) error { return &classified{kind, err} }

type classified struct{ kind, err error }

func (c *classified) Error() string { return c.err.Error() }

// Unwrap returns the kind and the cause.
func (c *classified) Unwrap() []error { return []error{c.kind, c.err} }
