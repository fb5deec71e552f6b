package admission

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
)

// Nodes knows this node's object.
type Nodes interface {
	// Node is the newest version that is known.
	Node() *v1.Node
	// Wait returns once the apiserver has sent the Node, or has said that there is none.
	Wait(ctx context.Context) error
	// Refresh asks the apiserver for the newest version, which Node then returns.
	Refresh(ctx context.Context) error
}

// Evictor ends a pod in favour of another and returns when nothing of it runs any more.
type Evictor interface {
	Evict(ctx context.Context, victim *v1.Pod) error
}

// AdmitterOptions configure an Admitter.
type AdmitterOptions struct {
	// Handlers judge pods that ask for admission, and Resizes those that ask for other resources.
	Handlers, Resizes []Handler
	Nodes             Nodes
	// Extended are the extended resources that the service resources hands out, and what pods may have of them. Nil: it
	// hands out none.
	Extended func() (allocatable v1.ResourceList, known bool)
	Evictor  Evictor
	// Running returns the pods of which something runs.
	Running func(ctx context.Context) (map[types.UID]bool, error)
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Admitter admits pods, one at a time, against those that it admitted before.
//
// A pod that runs was admitted before this process began: it is admitted first and
// without a check, so that a restart rejects nothing that runs. The others of a source wait until the source is synced,
// and then come in the order of their creation, so that a restart decides as the last process did.
type Admitter struct {
	o       AdmitterOptions
	metrics *metrics

	// asking guards the one question about what runs.
	asking chan struct{}
	asked  bool

	mu   sync.Mutex
	pods map[types.UID]*entry
	// queue has the pods in their order.
	queue []*entry
	runs  map[types.UID]bool
	heard map[podsyncv1.PodSource]bool
	// nodeKnown: the apiserver has sent the Node. Its pods are not judged before.
	nodeKnown bool
	// preempting counts the preemptions that are under way; changed is closed and replaced when one ends, when a resize is
	// granted or given up, and when a source has reported.
	preempting int
	// resizing counts the pods that have their place for other resources, which are not granted yet.
	resizing int
	changed  chan struct{}
}

// stage is how far a pod's admission is.
type stage int

const (
	undecided stage = iota
	admitted
	rejected
	ended
)

type entry struct {
	pod *v1.Pod
	// requests are those of the pod that they were computed for last.
	requests   v1.ResourceList
	requestsOf *v1.Pod
	// held is what others count while a resize of the pod is being granted; nil else.
	held   *span
	source podsyncv1.PodSource
	stage  stage
	// result of a rejected pod; of an admitted one only Preempt.
	result Result
	// leaves is when the pod's source removed it; zero for a pod that is wanted.
	leaves time.Time
	// until is when the pod waits no longer for the end of pods that leave; zero if it does not.
	until time.Time
	// The labels of the node may be old, and whether a newer version was asked for.
	stale, refreshed bool
}

// NewAdmitter returns an Admitter that knows no pods.
func NewAdmitter(o AdmitterOptions) *Admitter {
	return &Admitter{
		o: o, metrics: newMetrics(o.Metrics), asking: make(chan struct{}, 1), pods: map[types.UID]*entry{},
		runs: map[types.UID]bool{}, heard: map[podsyncv1.PodSource]bool{}, changed: make(chan struct{}),
	}
}

// Add announces a pod that will ask. It never waits.
func (a *Admitter) Add(p *v1.Pod, source podsyncv1.PodSource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[p.UID] == nil && !podutil.IsTerminal(p.Status.Phase) {
		e := &entry{pod: p, source: source}
		a.pods[p.UID] = e
		a.enqueue(e)
	}
}

// enqueue gives a pod its place in the order. Call with mu held.
func (a *Admitter) enqueue(e *entry) {
	i, _ := slices.BinarySearchFunc(a.queue, e, a.order)
	a.queue = slices.Insert(a.queue, i, e)
}

// dequeue takes a pod out of the order. Call with mu held.
func (a *Admitter) dequeue(e *entry) {
	if i := slices.Index(a.queue, e); i >= 0 {
		a.queue = slices.Delete(a.queue, i, i+1)
	}
}

// noteRuns notes that something of a pod runs.
func (a *Admitter) noteRuns(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs[uid] {
		return
	}
	e := a.pods[uid]
	if e != nil {
		a.dequeue(e)
	}
	a.runs[uid] = true
	if e != nil {
		a.enqueue(e)
	}
}

// Heard notes that a source is synced: it has sent all pods that it had at the start.
func (a *Admitter) Heard(source podsyncv1.PodSource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[source] = true
	a.wake()
}

// Rejected counts a pod that was admitted, and may then not run here all the same.
func (a *Admitter) Rejected(reason string) { a.metrics.rejected(reason) }

// Ended reports that nothing of the pod will run any more: its place is free.
func (a *Admitter) Ended(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil && e.stage != ended {
		e.stage, e.held, e.requestsOf, e.requests = ended, nil, nil, nil
		// Of its spec nothing is needed any more.
		e.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: e.pod.Namespace, Name: e.pod.Name, UID: uid, CreationTimestamp: e.pod.CreationTimestamp,
		}}
		a.giveUp(e)
		a.wake()
	}
}

// Forget drops a pod that is gone.
func (a *Admitter) Forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil {
		a.giveUp(e)
		a.dequeue(e)
	}
	delete(a.pods, uid)
	delete(a.runs, uid)
	a.wake()
}

// giveUp drops a preemption that will not be carried out: its pod has ended before it could. The caller wakes who
// waits.
func (a *Admitter) giveUp(e *entry) {
	if e.result.Preempt != nil {
		e.result.Preempt = nil
		a.preempting--
	}
}

// Admit returns the result on a pod, which stands for as long as the pod does. It waits
// until the pod's source was heard, for the end of those whom the pod preempts, and for that of
// pods that leave and have its place; ctx ends that. running: something of the pod runs.
func (a *Admitter) Admit(ctx context.Context, p *v1.Pod, source podsyncv1.PodSource, running bool) (Result, error) {
	if err := a.askWhatRuns(ctx); err != nil {
		return Result{}, err
	}
	a.Add(p, source)
	if running {
		a.noteRuns(p.UID)
	}
	if !source.Static() {
		// The kubelet too looks at no pod of the apiserver's before it knows the Node.
		if err := a.o.Nodes.Wait(ctx); err != nil {
			return Result{}, fmt.Errorf("wait for the Node: %w", err)
		}
		a.knowNode()
	}
	for {
		e, changed := a.decide(ctx, p)
		switch {
		case e.stage == admitted && e.result.Preempt != nil:
			a.preempt(ctx, p, e.result.Preempt)
			return Result{Judged: e.pod}, ctx.Err()
		case e.stage == admitted:
			e.result.Judged = e.pod
			return e.result, nil
		case e.stage != undecided:
			return e.result, nil
		case e.stale:
			if err := a.o.Nodes.Refresh(ctx); err != nil {
				a.o.Log.Warn("node not read again, its known labels decide", logkey.Err, err)
			}
			if ctx.Err() != nil {
				return Result{}, ctx.Err()
			}
			a.refreshed(p.UID)
		default:
			if err := awaitChange(ctx, changed, e.until); err != nil {
				return Result{}, err
			}
		}
	}
}

// awaitChange waits for a change, or for a time that is not zero.
func awaitChange(ctx context.Context, changed <-chan struct{}, until time.Time) error {
	timed := ctx
	if !until.IsZero() {
		var cancel context.CancelFunc
		timed, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	select {
	case <-changed:
	case <-timed.Done():
	}
	return ctx.Err()
}

// decide takes all pods that wait, in their order, and returns how p fares. p replaces
// the version that is known, if it is not decided upon.
func (a *Admitter) decide(ctx context.Context, p *v1.Pod) (entry, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.pods[p.UID]
	if own == nil { // one that has ended, and holds nothing
		return entry{stage: admitted}, a.changed
	}
	if own.stage == undecided {
		own.pod = p
	}
	a.decideAll(ctx)
	copied := *own
	own.result.Preempt = nil // from here on it is this caller's to carry out
	return copied, a.changed
}

// decideAll takes all pods that wait, in their order, and returns those that are admitted then. Call with mu held.
func (a *Admitter) decideAll(ctx context.Context) []*entry {
	var waiting []*entry
	for _, e := range a.queue {
		if e.stage == undecided && a.due(e) {
			waiting = append(waiting, e)
		}
	}
	for _, e := range waiting {
		a.decideOne(ctx, e, a.admitted())
	}
	return a.admitted()
}

// admitted are the pods that were admitted and have not ended, in their order. Call with mu held.
func (a *Admitter) admitted() []*entry {
	all := make([]*entry, 0, len(a.queue))
	for _, e := range a.queue {
		if e.stage == admitted {
			all = append(all, e)
		}
	}
	return all
}

// due reports whether a pod's turn has come. One that is being deleted, or leaves, asks for nothing.
func (a *Admitter) due(e *entry) bool {
	if a.runs[e.pod.UID] {
		return true
	}
	return a.heard[e.source] && e.pod.DeletionTimestamp == nil && e.leaves.IsZero() &&
		(a.nodeKnown || e.source.Static())
}

func (a *Admitter) decideOne(ctx context.Context, e *entry, others []*entry) {
	if a.runs[e.pod.UID] {
		e.stage = admitted
		return
	}
	if e.stale {
		return // until its own worker has read the Node again
	}
	judge := func(count func(*entry) *v1.Pod) Result {
		return ask(ctx, a.o.Handlers, a.attributesOf(e.pod, staying(others), count))
	}
	v := judge((*entry).most)
	if v.Admitted() && a.waitsForLeaving(ctx, e, others) {
		return
	}
	switch {
	case (v.Preempt != nil || v.Resources) && a.preempting > 0:
		// What others make room for may be enough for this one too: it is asked again then.
	case a.mayFit(&v, judge):
	case v.Admitted():
		e.stage, e.result = admitted, v
		if v.Preempt != nil {
			a.preempting++
		}
	case v.NodeMayBeOld && !e.refreshed:
		e.stale = true
	default:
		e.stage, e.result = rejected, v
		a.metrics.rejected(v.Reason)
		a.o.Log.Warn("pod rejected", logkey.Pod, e.pod.Namespace+"/"+e.pod.Name, logkey.PodUID, e.pod.UID,
			logkey.Reason, v.Reason,
			logkey.Message, v.Message)
	}
}

// Judge returns the result that a pod would get now, and keeps nothing of it: no pod is preempted for it, and none of
// the pods that wait is decided upon. A pod of the same name makes room for it.
func (a *Admitter) Judge(ctx context.Context, p *v1.Pod) Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	var others []*entry
	for _, e := range a.queue {
		same := e.pod.Namespace == p.Namespace && e.pod.Name == p.Name
		if e.stage == admitted && e.leaves.IsZero() && !same {
			others = append(others, e)
		}
	}
	attributes := a.attributes(p, others)
	attributes.Node = attributes.devices.with(attributes.Node)
	attributes.devices = devices{known: true} // all count, as no one else decides on them
	return ask(ctx, a.o.Handlers, attributes)
}

// attributes are what handlers decide on, with the others in their order.
func (a *Admitter) attributes(p *v1.Pod, others []*entry) *Attributes {
	return a.attributesOf(p, others, (*entry).most)
}

func (a *Admitter) attributesOf(p *v1.Pod, others []*entry, count func(*entry) *v1.Pod) *Attributes {
	attributes := &Attributes{
		Pod: p, Node: a.o.Nodes.Node(), Others: make([]*v1.Pod, len(others)),
		requests: make([]v1.ResourceList, len(others)), used: map[v1.ResourceName]int64{}, devices: a.devices(),
	}
	for i, other := range others {
		attributes.Others[i] = count(other)
		attributes.requests[i] = other.requestsAs(attributes.Others[i])
		addRequests(attributes.used, attributes.requests[i])
	}
	return attributes
}

// requestsAs are the requests of the pod as others count it. Many pods are judged against the same others.
func (e *entry) requestsAs(p *v1.Pod) v1.ResourceList {
	if e.requestsOf != p {
		e.requestsOf, e.requests = p, resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	}
	return e.requests
}

// order puts what runs before what does not, and else the older pod first.
func (a *Admitter) order(x, y *entry) int {
	if xr, yr := a.runs[x.pod.UID], a.runs[y.pod.UID]; xr != yr {
		if xr {
			return -1
		}
		return 1
	}
	return cmp.Or(
		x.pod.CreationTimestamp.Compare(y.pod.CreationTimestamp.Time),
		cmp.Compare(x.pod.Namespace, y.pod.Namespace), cmp.Compare(x.pod.Name, y.pod.Name),
		cmp.Compare(x.pod.UID, y.pod.UID),
	)
}

// preempt ends the victims, all at once, and waits for it. One that does not end costs
// the preemptor nothing: the kubelet starts it all the same.
func (a *Admitter) preempt(ctx context.Context, p *v1.Pod, preemption *Preemption) {
	var all sync.WaitGroup
	for _, victim := range preemption.Victims {
		all.Go(func() {
			log := a.o.Log.With(logkey.Pod, victim.Namespace+"/"+victim.Name, logkey.PodUID, victim.UID,
				"for", p.Namespace+"/"+p.Name)
			log.Info("pod is preempted", "resource", preemption.Signal)
			if err := a.o.Evictor.Evict(ctx, victim); err != nil {
				log.Error("preempted pod did not end", logkey.Err, err)
				return
			}
			a.metrics.preemptions.WithLabelValues(string(preemption.Signal)).Inc()
		})
	}
	all.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.preempting--
	a.wake()
}

func (a *Admitter) refreshed(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.pods[uid]; e != nil {
		e.stale, e.refreshed = false, true
	}
}

func (a *Admitter) knowNode() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodeKnown = true
}

// wake makes those who wait look again. Call with mu held.
func (a *Admitter) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// askWhatRuns asks once what ran before this process began.
func (a *Admitter) askWhatRuns(ctx context.Context) error {
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.asked {
		return nil
	}
	running, err := a.o.Running(ctx)
	if err != nil {
		return fmt.Errorf("ask the runtime which pods run: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, runs := range running {
		if runs {
			a.runs[uid] = true
		}
	}
	slices.SortFunc(a.queue, a.order)
	a.asked = true
	return nil
}
