// Package lease renews the Lease of the node, which shows the control plane that the node is alive.
//
// It does not use the controller of component-helpers: its Run cannot be paused, and it waits up to 7 s after a
// failure. The Lease would then be renewed too late after an outage of the API server.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// renewFraction of the duration passes between renewals, and jitter is added: the kubelet's figures.
	renewFraction = 4
	jitter        = 0.04
	// closedRetry is the pause while the gate is closed; the gate itself looks every 2 s.
	closedRetry = time.Second
	// firstRetry and lastRetry bound the pause after a failure: renewed within 10 s of the
	// apiserver's return, even when the try before has just begun to time out.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 2 * time.Second
	// ownerRetry is the pause while there is no Node yet that could own the Lease.
	ownerRetry = time.Second
)

// Leases is the apiserver, as far as a Lease needs it; client-go's LeaseInterface is one.
type Leases interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// Options of a Renewer.
type Options struct {
	Leases Leases
	// NodeName is the Lease's name and holder.
	NodeName string
	// Duration is nodeLeaseDurationSeconds; 40 s by default. It is renewed after a quarter of it.
	Duration time.Duration
	// Gate returns why the Lease may not be renewed, nil when it may.
	Gate func() error
	// NodeUID returns the Node's UID, "" while there is no Node.
	NodeUID func() types.UID
	// RequestTimeout bounds each request.
	RequestTimeout time.Duration
	// Failed is called after each try that failed, Succeeded after each renewal.
	Failed    func(error)
	Succeeded func()
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// Renewer renews one Lease.
type Renewer struct {
	o        Options
	latest   *coordinationv1.Lease
	failures int
	closed   bool
	renewals *prometheus.CounterVec

	mu      sync.Mutex
	renewed time.Time
}

// New returns a renewer; Renew is its job.
func New(o Options) *Renewer {
	r := &Renewer{o: o, renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_nodestatus_lease_renewals_total",
		Help: "Tries to renew the node's Lease by result: ok, error, withheld (podsync hangs).",
	}, []string{"result"})}
	last := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "microlet_nodestatus_lease_renewed_timestamp_seconds",
		Help: "Unix time at which the node's Lease was renewed last; 0 before the first time.",
	}, func() float64 {
		if t := r.Renewed(); !t.IsZero() {
			return float64(t.Unix())
		}
		return 0
	})
	o.Metrics.MustRegister(r.renewals, last)
	return r
}

// Renewed is when the Lease was renewed last.
func (r *Renewer) Renewed() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.renewed
}

// Renew renews the Lease if the gate lets it, and returns the pause until the next time.
func (r *Renewer) Renew(ctx context.Context) time.Duration {
	if err := r.o.Gate(); err != nil {
		r.renewals.WithLabelValues("withheld").Inc()
		if !r.closed {
			r.o.Log.Error("the lease is no longer renewed: the node does not do its work", logkey.Err, err)
		}
		r.closed = true
		return closedRetry
	}
	if r.closed {
		r.o.Log.Info("the lease is renewed again")
		r.closed = false
	}
	uid := r.o.NodeUID()
	if err := r.renew(ctx, uid); err != nil {
		r.renewals.WithLabelValues("error").Inc()
		r.o.Log.Warn("lease not renewed, will retry", logkey.Err, err)
		r.o.Failed(err)
		pause := min(firstRetry<<min(r.failures, 10), lastRetry)
		r.failures++
		return pause
	}
	r.failures = 0
	if r.latest == nil {
		return ownerRetry
	}
	r.renewals.WithLabelValues("ok").Inc()
	r.mu.Lock()
	r.renewed = time.Now()
	r.mu.Unlock()
	r.o.Succeeded()
	period := r.o.Duration / renewFraction
	return period + time.Duration(rand.Float64()*jitter*float64(period))
}

// renew updates the Lease as it was known last; when that is outdated it reads or creates it. latest
// is nil afterwards only if there is neither a Lease nor a Node to own one.
func (r *Renewer) renew(ctx context.Context, uid types.UID) error {
	if r.latest != nil {
		err := r.update(ctx, r.latest, uid)
		if err == nil || apierrors.ReasonForError(err) == "" {
			return err // what is known may still be right
		}
		r.latest = nil // another client wrote or deleted it, or it did not come from the API server
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	var existing *coordinationv1.Lease
	err := r.request(ctx, func(ctx context.Context) (err error) {
		existing, err = r.o.Leases.Get(ctx, r.o.NodeName, metav1.GetOptions{})
		return err
	})
	switch {
	case err == nil:
		return r.update(ctx, existing, uid)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get lease: %w", err)
	case uid == "":
		return nil // it would outlive the node
	}
	return r.request(ctx, func(ctx context.Context) error {
		created, err := r.o.Leases.Create(ctx, r.filled(&coordinationv1.Lease{}, uid), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create lease: %w", err)
		}
		r.latest = created
		return nil
	})
}

func (r *Renewer) update(ctx context.Context, base *coordinationv1.Lease, uid types.UID) error {
	return r.request(ctx, func(ctx context.Context) error {
		updated, err := r.o.Leases.Update(ctx, r.filled(base, uid), metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update lease: %w", err)
		}
		if updated.Name != r.o.NodeName { // client-go takes any object of JSON for one
			return errors.New("update lease: the answer is none")
		}
		r.latest = updated
		return nil
	})
}

func (r *Renewer) request(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.RequestTimeout)
	defer cancel()
	return do(ctx)
}

// filled returns a copy of the Lease as it shall be now.
func (r *Renewer) filled(base *coordinationv1.Lease, uid types.UID) *coordinationv1.Lease {
	l := base.DeepCopy()
	l.Name, l.Namespace = r.o.NodeName, v1.NamespaceNodeLease
	holder, seconds := r.o.NodeName, int32(r.o.Duration/time.Second)
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &holder, &seconds
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if len(l.OwnerReferences) == 0 && uid != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.o.NodeName, UID: uid}}
	}
	return l
}
