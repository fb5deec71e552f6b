package scene

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// Scene is the place of one scenario: a namespace of its own on the shared node, which is empty again when the scenario
// ends.
type Scene struct {
	*Node
	T         *testing.T // the test that the scenario is
	Namespace string
}

// Scenes counts the scenes of the run. The namespace of the next one ends in the next number.
var Scenes atomic.Int64

// New makes the namespace of a scenario, and empties it when the test ends.
func New(t *testing.T) *Scene {
	t.Helper()
	Shared.EnsureUp(t)
	s := &Scene{Node: Shared, T: t, Namespace: fmt.Sprintf("scene-%d", Scenes.Add(1))}
	ctx := t.Context()
	_, err := s.API.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	Await(t, Patience, "the namespace's service account", func() error {
		_, err := s.API.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			_, err = s.API.CoreV1().ConfigMaps(s.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		}
		return err
	})
	t.Cleanup(s.DeleteAllPods)
	return s
}

// DeleteAllPods deletes what the scenario has left, and waits.
func (s *Scene) DeleteAllPods() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	err := s.API.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		s.T.Errorf("delete the scenario's pods: %v", err)
	}
	if err := s.Record.Wait(ctx, func(v record.View) error { return NoPods(v, s.Namespace) }); err != nil {
		s.T.Errorf("the scenario's pods do not go: %v", err)
	}
}

// NoPods returns an error that names the pods that a namespace still has.
func NoPods(v record.View, namespace string) error {
	var names []string
	for _, p := range v.Pods(namespace) {
		names = append(names, p.Name)
	}
	if len(names) > 0 {
		return fmt.Errorf("still there: %s", strings.Join(names, ", "))
	}
	return nil
}

// CreatePods creates pods, bound to the node by the scheduler, at once.
func (s *Scene) CreatePods(pods ...*corev1.Pod) {
	s.T.Helper()
	results := make(chan error, len(pods))
	for _, p := range pods {
		go func() {
			_, err := s.API.CoreV1().Pods(s.Namespace).Create(s.T.Context(), p, metav1.CreateOptions{})
			results <- err
		}()
	}
	var problems []error
	for range pods {
		problems = append(problems, <-results)
	}
	if err := errors.Join(problems...); err != nil {
		s.T.Fatal(err)
	}
}

// DeletePods deletes pods by name.
func (s *Scene) DeletePods(names ...string) {
	s.T.Helper()
	for _, name := range names {
		err := s.API.CoreV1().Pods(s.Namespace).Delete(s.T.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.T.Fatal(err)
		}
	}
}

// Wait waits for a state of the record.
func (s *Scene) Wait(limit time.Duration, what string, condition func(record.View) error) {
	s.T.Helper()
	if err := s.WaitErr(limit, condition); err != nil {
		s.T.Fatalf("waited %s in vain for %s: %v", limit, what, err)
	}
}

// WaitErr is Wait for a scenario that goes on without the state, and returns why it was not reached.
func (s *Scene) WaitErr(limit time.Duration, condition func(record.View) error) error {
	ctx, cancel := context.WithTimeout(s.T.Context(), limit)
	defer cancel()
	return s.Record.Wait(ctx, condition)
}

// WaitReady waits until these pods are Ready.
func (s *Scene) WaitReady(limit time.Duration, names ...string) {
	s.T.Helper()
	s.Wait(limit, "Ready pods", s.AreReady(names...))
}

// AreReady returns a condition for Wait: these pods are Ready.
func (s *Scene) AreReady(names ...string) func(record.View) error {
	return func(v record.View) error {
		var missing []string
		for _, name := range names {
			if p := v.Pod(s.Namespace, name); p == nil || !record.Ready(p) {
				missing = append(missing, name+" ("+Describe(p)+")")
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d not Ready: %s", len(missing), len(names), strings.Join(missing, ", "))
		}
		return nil
	}
}

// AreGone returns a condition for Wait: the API has none of these pods.
func (s *Scene) AreGone(names ...string) func(record.View) error {
	return func(v record.View) error {
		for _, name := range names {
			if v.Pod(s.Namespace, name) != nil {
				return fmt.Errorf("pod %s is still there", name)
			}
		}
		return nil
	}
}

// ContainerStatuses are those of a pod's containers; none of a pod that is not there.
func (s *Scene) ContainerStatuses(v record.View, pod string) []corev1.ContainerStatus {
	if p := v.Pod(s.Namespace, pod); p != nil {
		return p.Status.ContainerStatuses
	}
	return nil
}

// Describe is a pod's state in short.
func Describe(p *corev1.Pod) string {
	if p == nil {
		return "not there"
	}
	text := string(p.Status.Phase)
	if p.Spec.NodeName == "" {
		text += ", not scheduled"
	}
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil:
			text += fmt.Sprintf(", %s waiting: %s %s", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
		case c.State.Terminated != nil:
			text += fmt.Sprintf(", %s terminated: %s %d", c.Name, c.State.Terminated.Reason,
				c.State.Terminated.ExitCode)
		}
	}
	return text
}

// CreateSteadyPods creates the pods that nothing may touch, and waits for them.
func (s *Scene) CreateSteadyPods() *Witness {
	s.T.Helper()
	var pods []*corev1.Pod
	var names []string
	for i := range SteadyPods {
		p := PausePod(fmt.Sprintf("steady-%d", i))
		pods, names = append(pods, p), append(names, p.Name)
	}
	s.CreatePods(pods...)
	s.WaitReady(Patience, names...)
	return s.Witness(names...)
}

// Witness remembers how pods, node and Lease are now.
type Witness struct {
	s     *Scene
	Mark  record.Mark           // since when
	Pods  []*corev1.Pod         // which Untouched judges
	Lease *coordinationv1.Lease // as it was
}

// Witness remembers these pods, the node and its Lease as they are now, to judge later what has changed.
func (s *Scene) Witness(names ...string) *Witness {
	s.T.Helper()
	s.SyncRecord()
	w := &Witness{s: s, Mark: s.Record.Mark()}
	v := s.Record.View()
	for _, name := range names {
		p := v.Pod(s.Namespace, name)
		if p == nil {
			s.T.Fatalf("no pod %s", name)
		}
		w.Pods = append(w.Pods, p)
	}
	if w.Lease = v.Lease(); w.Lease == nil {
		s.T.Fatal("the node has no Lease")
	}
	return w
}

// SyncRecord makes the record complete up to now.
func (s *Scene) SyncRecord() {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), 30*time.Second)
	defer cancel()
	if err := s.Record.Sync(ctx); err != nil {
		s.T.Fatal(err)
	}
}

// Untouched judges that no pod of the witness was touched since.
func (w *Witness) Untouched() {
	w.s.T.Helper()
	w.s.SyncRecord()
	for i, p := range record.Untouched(w.Pods, w.s.Record.Since(w.Mark)) {
		if i == 20 {
			w.s.T.Error("… and more")
			break
		}
		w.s.T.Error(p)
	}
}

// NodeReady judges that the node was Ready all the time since.
func (w *Witness) NodeReady() {
	w.s.T.Helper()
	w.s.SyncRecord()
	for _, p := range record.NodeReady(w.s.Record.Since(w.Mark)) {
		w.s.T.Error(p)
	}
}

// LeaseAge is the greatest age that the Lease had since.
func (w *Witness) LeaseAge() time.Duration {
	w.s.T.Helper()
	w.s.SyncRecord()
	return record.LeaseAge(w.Lease, w.s.Record.Since(w.Mark), time.Now())
}

// StartTime is the time from a pod's creation to Ready, as the record saw both.
func (s *Scene) StartTime(name string) time.Duration {
	s.T.Helper()
	p := s.Record.View().Pod(s.Namespace, name)
	if p == nil {
		s.T.Fatalf("no pod %s", name)
	}
	t := record.PodTimes(s.Record.Since(0))[p.UID]
	if t.Created.IsZero() || t.Ready.IsZero() {
		s.T.Fatalf("pod %s was not seen to become Ready: %+v", name, t)
	}
	return t.Ready.Sub(t.Created)
}

// ContainerLog reads what a container has written, without the runtime's prefixes.
func (s *Scene) ContainerLog(p *corev1.Pod, container string, restart int) (string, error) {
	dir := fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID)
	text, err := s.ReadFile(filepath.Join(s.PodLogsDir(), dir, container, fmt.Sprintf("%d.log", restart)))
	if err != nil {
		return "", err
	}
	var lines strings.Builder
	for line := range strings.Lines(string(text)) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			lines.WriteString(parts[3])
		}
	}
	return lines.String(), nil
}

// Milliseconds rounds a duration for a log.
func Milliseconds(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
