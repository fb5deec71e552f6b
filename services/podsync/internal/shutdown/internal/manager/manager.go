// Package manager ends the pods of a node in phases by priority when its machine shuts down.
//
// Each phase has its own period. It is over when its pods have ended, have given back what they held, and the API
// server has acknowledged their status; or when its period is over. No pod is admitted meanwhile. How far a shutdown is
// lies on the disk, so that a podsync that was killed continues. A machine that comes up again continues nothing. See
// KEP-2000 and KEP-2712.
package manager

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/admission"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/pods"
)

// The kubelet's reasons and messages.
const (
	notAdmittedReason  = "NodeShutdown"
	notAdmittedMessage = "Pod was rejected as the node is shutting down."
	endedReason        = "Terminated"
	endedMessage       = "Pod was terminated in response to imminent node shutdown."
	eventReason        = "Shutdown"
	beganMessage       = "Shutdown manager detected shutdown event"
	cancelledMessage   = "Shutdown manager detected shutdown cancellation"
)

// look is how often a phase looks at its pods.
const look = 100 * time.Millisecond

// nodeWait bounds the wait for the Node's own status, which nodestatus writes as soon as the shutdown begins.
const nodeWait = 5 * time.Second

// Pods know and end the node's pods; see pods.Workers.
type Pods interface {
	Standings() []pods.Standing
	Evict(ctx context.Context, uid types.UID, override status.Override, grace *int64) error
	// Synced is closed once every source of pods has been heard.
	Synced() <-chan struct{}
}

// Options of a Manager.
type Options struct {
	Phases []Phase
	Pods   Pods
	// Delivered reports whether the API server has the newest status of a pod.
	Delivered func(uid types.UID) bool
	// NodeReported reports whether the API server has the Node as not ready.
	NodeReported func() bool
	// Release lets the machine go down.
	Release func()
	// State is the path of the file with the state; see StateFile.
	State string
	// BootID is the kernel's name of this boot. Without it no shutdown is continued.
	BootID string
	// Node is what events refer to.
	Node    *v1.ObjectReference
	Events  record.EventRecorder
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Manager is the shutdown of this node. It is safe for concurrent use.
type Manager struct {
	o          Options
	start, end prometheus.Gauge
	signal     chan struct{}

	mu           sync.Mutex
	shuttingDown bool
	// begun is the phase that was begun last, -1 before the first. It stays until the shutdown is cancelled.
	begun  int
	cancel context.CancelFunc // of the phases, nil while there are none
	state  state
}

// New returns a manager of a node that does not shut down.
func New(o Options) *Manager {
	m := &Manager{
		o: o, signal: make(chan struct{}, 1), begun: -1,
		start: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_start_time_seconds",
			Help: "When the last graceful shutdown began, in seconds since the epoch."}),
		end: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_graceful_shutdown_end_time_seconds",
			Help: "When the last graceful shutdown was completed, in seconds since the epoch; 0 while one is under way."}),
	}
	o.Metrics.MustRegister(m.start, m.end)
	var err error
	if m.state, err = load(o.State); err != nil {
		o.Log.Warn("an earlier shutdown is not known", logkey.Err, err)
	}
	m.show(&m.state)
	return m
}

func (m *Manager) show(s *state) {
	seconds := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return float64(t.Unix())
	}
	m.start.Set(seconds(s.StartTime))
	m.end.Set(seconds(s.EndTime))
}

// Changed says whether the machine shuts down. It does not block, and may say the same again.
func (m *Manager) Changed(shuttingDown bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// One that was cancelled while podsync restarted is still open.
	cancelledMeanwhile := !shuttingDown && m.state.underWay(m.o.BootID)
	if m.shuttingDown == shuttingDown && !cancelledMeanwhile {
		return
	}
	m.shuttingDown = shuttingDown
	if shuttingDown {
		m.begin()
		select {
		case m.signal <- struct{}{}:
		default:
		}
		return
	}
	m.begun = -1
	if m.cancel != nil {
		m.cancel()
	}
	if m.state.EndTime.IsZero() {
		m.state.EndTime = time.Now()
		m.keep()
	}
	m.o.Log.Info("shutdown of the node is cancelled")
	m.o.Events.Event(m.o.Node, v1.EventTypeNormal, eventReason, cancelledMessage)
}

// begin takes up a shutdown that an earlier podsync had begun, or begins one. The caller holds mu.
func (m *Manager) begin() {
	now := time.Now()
	if s := m.state; s.underWay(m.o.BootID) && !s.StartTime.After(now) && now.Sub(s.StartTime) < Total(m.o.Phases) {
		for i, p := range m.o.Phases {
			if !s.PhaseStartTime.IsZero() && p.Priority <= s.PhasePriority {
				m.begun = i
			}
		}
		m.o.Log.Info("shutdown of the node continues", "began", s.StartTime, "phase", m.begun)
		return
	}
	m.o.Log.Info("shutdown of the node begins", "phases", len(m.o.Phases), "most", Total(m.o.Phases))
	m.o.Events.Event(m.o.Node, v1.EventTypeNormal, eventReason, beganMessage)
	m.state = state{StartTime: now, BootID: m.o.BootID}
	m.keep()
}

// keep shows and stores the state. The caller holds mu.
func (m *Manager) keep() {
	m.show(&m.state)
	if err := m.state.store(m.o.State); err != nil {
		m.o.Log.Error("a podsync that starts now would begin the shutdown again", logkey.Err, err)
	}
}

// ShuttingDown reports whether the machine shuts down.
func (m *Manager) ShuttingDown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shuttingDown
}

// Admit implements admission.Handler.
func (m *Manager) Admit(context.Context, *admission.Attributes) admission.Result {
	if !m.ShuttingDown() {
		return admission.Result{}
	}
	return admission.Result{Reason: notAdmittedReason, Message: notAdmittedMessage}
}

// Ends returns how a pod ends that ran when an earlier podsync was killed, if the phase of the pod had begun; else it
// is nil. Without it the worker of such a pod would start again what had been stopped.
func (m *Manager) Ends(p *v1.Pod) *status.Override {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.shuttingDown || p.Status.Phase != v1.PodRunning || phaseOf(m.o.Phases, p) > m.begun {
		return nil
	}
	o := override()
	return &o
}

func override() status.Override {
	return status.Override{
		Phase: v1.PodFailed, Reason: endedReason, Message: endedMessage, Yields: true,
		Condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet,
			Message: endedMessage,
		},
	}
}

// Run ends the pods whenever a shutdown begins, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil // who comes next continues, and the machine waits for it
		case <-m.signal:
		}
		phases, cancel := context.WithCancel(ctx)
		m.mu.Lock()
		shuttingDown, first := m.shuttingDown, max(m.begun, 0)
		m.cancel = cancel
		m.mu.Unlock()
		if shuttingDown {
			m.endAll(phases, first)
			if m.complete(phases) {
				m.o.Log.Info("shutdown of the node: the machine may go down")
				m.o.Release()
			}
		}
		cancel()
	}
}

// complete notes the end of a shutdown, unless it was cancelled.
func (m *Manager) complete(phases context.Context) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cancel = nil
	if phases.Err() != nil {
		return false
	}
	m.state.EndTime = time.Now()
	m.keep()
	return true
}

// endAll ends the pods of all phases from the first on, until ctx ends.
func (m *Manager) endAll(ctx context.Context, first int) {
	var ending sync.WaitGroup
	defer ending.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := map[types.UID]bool{}
	for i := first; i < len(m.o.Phases) && ctx.Err() == nil; i++ {
		deadline := m.beginPhase(i)
		m.endPhase(ctx, i, deadline, asked, &ending)
	}
	m.awaitNode(ctx)
}

// beginPhase notes that a phase begins, if no earlier podsync began it, and returns when its period is over.
func (m *Manager) beginPhase(i int) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	phase := m.o.Phases[i]
	if m.begun != i || m.state.PhaseStartTime.IsZero() || m.state.PhasePriority != phase.Priority {
		m.begun, m.state.PhasePriority, m.state.PhaseStartTime = i, phase.Priority, time.Now()
		m.keep()
	}
	return m.state.PhaseStartTime.Add(phase.Period)
}

func (m *Manager) endPhase(ctx context.Context, i int, deadline time.Time, asked map[types.UID]bool,
	ending *sync.WaitGroup) {
	log := m.o.Log.With("priority", m.o.Phases[i].Priority, "period", m.o.Phases[i].Period)
	timer, ticker := time.NewTimer(time.Until(deadline)), time.NewTicker(look)
	defer timer.Stop()
	defer ticker.Stop()
	for {
		left := m.remaining(i, asked)
		for _, p := range left {
			if p.ends && !asked[p.pod.UID] {
				asked[p.pod.UID] = true
				ending.Go(func() { m.endPod(ctx, p.pod, time.Until(deadline)) })
			}
		}
		if len(left) == 0 && m.allKnown() {
			log.Info("shutdown of the node: the pods of a phase have ended")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-timer.C:
			names := make([]string, 0, len(left))
			for _, p := range left {
				names = append(names, p.pod.Namespace+"/"+p.pod.Name)
			}
			log.Warn("shutdown of the node: the period of a phase is over before its pods have ended", "pods", names)
			return
		}
	}
}

// leftPod is a pod that keeps its phase from being over.
type leftPod struct {
	pod *v1.Pod
	// ends: it is to be ended. It is false for a pod without a decision about its admission.
	ends bool
}

// remaining are the pods of the phases up to i that have not ended completely. Those that did not end in the period of
// their own phase keep the last phase alone.
func (m *Manager) remaining(i int, asked map[types.UID]bool) []leftPod {
	var left []leftPod
	last := len(m.o.Phases) - 1
	for _, s := range m.o.Pods.Standings() {
		of := phaseOf(m.o.Phases, s.Pod)
		switch {
		case of > i || s.Rejection != nil:
		case of < i && i < last && asked[s.Pod.UID]:
		case s.Released && m.o.Delivered(s.Pod.UID):
		case undecided(&s):
			left = append(left, leftPod{pod: s.Pod})
		default:
			left = append(left, leftPod{pod: s.Pod, ends: true})
		}
	}
	return left
}

// undecided reports whether admission will judge the pod.
func undecided(s *pods.Standing) bool { return !s.Admitted && s.Syncing }

// allKnown reports whether every pod of the node is known.
func (m *Manager) allKnown() bool {
	select {
	case <-m.o.Pods.Synced():
		return true
	default:
		return false
	}
}

// endPod ends a pod within its own grace period, or what is left of the phase's if that is shorter.
func (m *Manager) endPod(ctx context.Context, p *v1.Pod, left time.Duration) {
	grace := max(int64(left.Round(time.Second)/time.Second), 1)
	if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = min(grace, *own)
	}
	log := m.o.Log.With(logkey.Pod, p.Namespace+"/"+p.Name, logkey.PodUID, p.UID)
	log.Info("shutdown of the node ends a pod", "graceSeconds", grace)
	err := m.o.Pods.Evict(ctx, p.UID, override(), &grace)
	if err != nil && ctx.Err() == nil && !errors.Is(err, pod.ErrUnknown) {
		log.Error("shutdown of the node did not end a pod", logkey.Err, err)
	}
}

// awaitNode waits until the API server has the Node as not ready: without pods the machine may be gone before.
func (m *Manager) awaitNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, nodeWait)
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for !m.o.NodeReported() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
