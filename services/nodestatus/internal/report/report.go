// Package report keeps the Node in the API up to date, at the kubelet's cadence.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

// The kubelet's figures.
const (
	firstRegisterRetry = 100 * time.Millisecond
	lastRegisterRetry  = 7 * time.Second
	tries              = 5
	// While the node is not ready yet, its readiness is looked at this often, for so long.
	fastPeriod = 100 * time.Millisecond
	fastFor    = 120 * time.Second
)

// Nodes is the apiserver, as far as the Node is concerned. Its calls end by themselves.
type Nodes interface {
	Get(ctx context.Context) (*v1.Node, error)
	Create(ctx context.Context, n *v1.Node) (*v1.Node, error)
	PatchStatus(ctx context.Context, from, to *v1.Node) (*v1.Node, error)
}

// Options of a Reporter.
type Options struct {
	Settings node.Settings
	// Register is registerNode: create the Node, or bring an existing one in line.
	Register bool
	Nodes    Nodes
	// Cached returns the Node as a watch saw it last, nil when it saw none.
	Cached func() *v1.Node
	// Observe returns what is seen of the node; fresh asks for the slow part of it too.
	Observe func(ctx context.Context, fresh bool) node.Observed
	// Found is called with a Node that existed before this service started, before it is changed.
	Found func(*v1.Node)
	// Accepted is called with the Node as the apiserver has it, after each look at it.
	Accepted func(*v1.Node)
	// Record sends a Kubernetes Event about the Node.
	Record func(n *v1.Node, e node.Event)
	// UpdateFrequency is nodeStatusUpdateFrequency, ReportFrequency is nodeStatusReportFrequency.
	UpdateFrequency, ReportFrequency time.Duration
	// Failed is called after each failed request, Succeeded after each success.
	Failed    func(error)
	Succeeded func()
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// Reporter reports the status of one node. Its job is Report.
type Reporter struct {
	o       Options
	updates *prometheus.CounterVec
	started time.Time

	registered    bool
	found         bool
	backoff       time.Duration
	nextFull      time.Time
	ready         bool // the apiserver has accepted that the node is ready, once
	reported      time.Time
	delay         time.Duration
	unschedulable bool

	due atomic.Bool // a full report is due now

	mu   sync.Mutex
	last *v1.Node // as the apiserver accepted it last
}

// New returns a reporter.
func New(o Options) *Reporter {
	r := &Reporter{
		o: o, started: time.Now(), backoff: firstRegisterRetry, registered: !o.Register,
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodestatus_updates_total",
			Help: "Requests about the Node by verb (register, patch) and result (ok, error).",
		}, []string{"verb", "result"}),
	}
	o.Metrics.MustRegister(r.updates)
	return r
}

// Last returns the Node as the apiserver accepted it last, nil before that.
func (r *Reporter) Last() *v1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Due makes the next Report a full one, whatever the cadence says.
func (r *Reporter) Due() { r.due.Store(true) }

// Report registers the node if need be, and reports its status if it changed or a report is due. It
// returns the pause until the next time.
func (r *Reporter) Report(ctx context.Context) time.Duration {
	if !r.registered {
		if err := r.register(ctx); err != nil {
			r.updates.WithLabelValues("register", "error").Inc()
			r.o.Log.Warn("node not registered, will retry", logkey.Err, err, logkey.Delay, r.backoff)
			r.o.Failed(err)
			pause := r.backoff
			r.backoff = min(2*r.backoff, lastRegisterRetry)
			return pause
		}
		r.updates.WithLabelValues("register", "ok").Inc()
		r.o.Succeeded()
		r.registered = true
	}
	full := r.due.Swap(false) || !time.Now().Before(r.nextFull)
	if full {
		r.nextFull = time.Now().Add(r.o.UpdateFrequency)
	}
	if err := r.sync(ctx, full); err != nil {
		r.o.Log.Warn("node status not reported, will retry", logkey.Err, err)
	}
	if !r.ready && time.Since(r.started) < fastFor && r.Last() != nil {
		return fastPeriod
	}
	return max(0, time.Until(r.nextFull))
}

// register creates the Node, or brings the existing one in line.
func (r *Reporter) register(ctx context.Context) error {
	existing, err := r.o.Nodes.Get(ctx)
	if err == nil {
		r.meet(existing)
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get node: %w", err)
	}
	observed := r.o.Observe(ctx, true)
	initial, _, _ := r.o.Settings.Update(r.o.Settings.Initial(), observed, time.Now())
	if existing == nil || err != nil {
		created, err := r.o.Nodes.Create(ctx, initial)
		if err != nil {
			return fmt.Errorf("create node: %w", err)
		}
		r.found = true
		r.o.Log.Info("registered the node", "node", created.Name)
		r.accept(created)
		return nil
	}
	updated := existing.DeepCopy()
	if node.Reconcile(updated, initial, observed.Extended != nil) {
		if updated, err = r.o.Nodes.PatchStatus(ctx, existing, updated); err != nil {
			return fmt.Errorf("reconcile node: %w", err)
		}
	}
	r.o.Log.Info("the node was registered before", "node", existing.Name)
	r.accept(updated)
	return nil
}

// meet reports a Node from before this life, once.
func (r *Reporter) meet(n *v1.Node) {
	if !r.found {
		r.found = true
		r.o.Found(n)
	}
}

func (r *Reporter) accept(n *v1.Node) {
	r.mu.Lock()
	r.last = n
	r.mu.Unlock()
	r.ready = r.ready || node.IsReady(n)
	r.o.Accepted(n)
}

// sync reports the status. Unless full is set, it reports only that the node has become ready.
func (r *Reporter) sync(ctx context.Context, full bool) error {
	var errs []error
	for try := range tries {
		err := r.trySync(ctx, full, try)
		if err == nil {
			r.o.Succeeded()
			return nil
		}
		errs = append(errs, err)
		r.updates.WithLabelValues("patch", "error").Inc()
		r.o.Failed(err)
		if ctx.Err() != nil || apierrors.IsNotFound(err) {
			break
		}
	}
	return errors.Join(errs...)
}

// trySync starts from the watched Node, which is near enough and costs the apiserver nothing; after a
// failure, from what the apiserver says.
func (r *Reporter) trySync(ctx context.Context, full bool, try int) error {
	original := r.o.Cached()
	if original == nil || try > 0 || older(original, r.Last()) {
		if original = r.Last(); original == nil || try > 0 || full {
			var err error
			if original, err = r.o.Nodes.Get(ctx); err != nil {
				return fmt.Errorf("get node: %w", err)
			}
		}
	}
	r.meet(original)
	updated, changed, events := r.o.Settings.Update(original, r.o.Observe(ctx, full), time.Now())
	if !full && !node.IsReady(updated) {
		return nil
	}
	if expired := time.Since(r.reported) >= r.o.ReportFrequency+r.delay; !changed && !expired {
		r.accept(original)
		r.schedulable(original)
		return nil
	}
	accepted, err := r.o.Nodes.PatchStatus(ctx, original, updated)
	if err != nil {
		return fmt.Errorf("patch node status: %w", err)
	}
	r.updates.WithLabelValues("patch", "ok").Inc()
	if r.delay = 0; changed || r.reported.IsZero() {
		// So that the nodes of a cluster that changed together do not report together ever after.
		r.delay = time.Duration(float64(r.o.ReportFrequency) * (rand.Float64() - 0.5))
	}
	r.reported = time.Now()
	r.accept(accepted)
	for _, e := range events {
		r.o.Log.Info("node status event", logkey.Reason, e.Reason, logkey.Message, e.Message)
		r.o.Record(accepted, e)
	}
	r.schedulable(accepted)
	return nil
}

// older reports whether the watch lags behind what the apiserver answered: from a stale Node a change
// would be seen, and its Event sent, twice. Times have whole seconds, in which the volumes in use may change often: a
// volume that is on the stale list alone would be taken for one that the apiserver has accepted.
func older(cached, last *v1.Node) bool {
	if last == nil {
		return true // a watch begins at a version of its own choice
	}
	if cached.UID != last.UID {
		return false
	}
	if !slices.Equal(cached.Status.VolumesInUse, last.Status.VolumesInUse) {
		return true
	}
	a, b := node.Condition(cached, v1.NodeReady), node.Condition(last, v1.NodeReady)
	return a == nil && b != nil || a != nil && b != nil && a.LastHeartbeatTime.Before(&b.LastHeartbeatTime)
}

// schedulable reports when the node was cordoned or uncordoned.
func (r *Reporter) schedulable(n *v1.Node) {
	if n.Spec.Unschedulable == r.unschedulable {
		return
	}
	r.unschedulable = n.Spec.Unschedulable
	reason := "NodeSchedulable"
	if r.unschedulable {
		reason = "NodeNotSchedulable"
	}
	r.o.Record(n, r.o.Settings.StatusEvent(reason))
}
