package e2e

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
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/compose/e2e/internal/record"
)

// scene is one scenario's place: a namespace of its own on the shared node, which is empty again
// when the scenario ends.
type scene struct {
	*node
	t  *testing.T
	ns string
}

var scenes atomic.Int64

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{node: shared, t: t, ns: fmt.Sprintf("scene-%d", scenes.Add(1))}
	ctx := t.Context()
	_, err := s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, patience, "the namespace's service account", func() error {
		_, err := s.client.CoreV1().ServiceAccounts(s.ns).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			_, err = s.client.CoreV1().ConfigMaps(s.ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		}
		return err
	})
	t.Cleanup(s.clear)
	return s
}

// clear deletes what the scenario has left, and waits.
func (s *scene) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.client.CoreV1().Pods(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		s.t.Errorf("delete the scenario's pods: %v", err)
	}
	if err := s.record.Wait(ctx, func(v record.View) error { return noPods(v, s.ns) }); err != nil {
		s.t.Errorf("the scenario's pods do not go: %v", err)
	}
}

func noPods(v record.View, namespace string) error {
	var names []string
	for _, p := range v.Pods(namespace) {
		names = append(names, p.Name)
	}
	if len(names) > 0 {
		return fmt.Errorf("still there: %s", strings.Join(names, ", "))
	}
	return nil
}

// create creates pods, bound to the node by the scheduler, at once.
func (s *scene) create(pods ...*corev1.Pod) {
	s.t.Helper()
	results := make(chan error, len(pods))
	for _, p := range pods {
		go func() {
			_, err := s.client.CoreV1().Pods(s.ns).Create(s.t.Context(), p, metav1.CreateOptions{})
			results <- err
		}()
	}
	var problems []error
	for range pods {
		problems = append(problems, <-results)
	}
	if err := errors.Join(problems...); err != nil {
		s.t.Fatal(err)
	}
}

// remove deletes pods by name.
func (s *scene) remove(names ...string) {
	s.t.Helper()
	for _, name := range names {
		err := s.client.CoreV1().Pods(s.ns).Delete(s.t.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.t.Fatal(err)
		}
	}
}

// wait waits for a state of the record.
func (s *scene) wait(limit time.Duration, what string, condition func(record.View) error) {
	s.t.Helper()
	if err := s.waitErr(limit, condition); err != nil {
		s.t.Fatalf("waited %s in vain for %s: %v", limit, what, err)
	}
}

func (s *scene) waitErr(limit time.Duration, condition func(record.View) error) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	return s.record.Wait(ctx, condition)
}

// ready waits until these pods are Ready.
func (s *scene) ready(limit time.Duration, names ...string) {
	s.t.Helper()
	s.wait(limit, "Ready pods", s.areReady(names...))
}

func (s *scene) areReady(names ...string) func(record.View) error {
	return func(v record.View) error {
		var missing []string
		for _, name := range names {
			if p := v.Pod(s.ns, name); p == nil || !record.Ready(p) {
				missing = append(missing, name+" ("+describe(p)+")")
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d not Ready: %s", len(missing), len(names), strings.Join(missing, ", "))
		}
		return nil
	}
}

// areGone waits for pods' end.
func (s *scene) areGone(names ...string) func(record.View) error {
	return func(v record.View) error {
		for _, name := range names {
			if v.Pod(s.ns, name) != nil {
				return fmt.Errorf("pod %s is still there", name)
			}
		}
		return nil
	}
}

// statuses are those of a pod's containers; none of a pod that is not there.
func (s *scene) statuses(v record.View, pod string) []corev1.ContainerStatus {
	if p := v.Pod(s.ns, pod); p != nil {
		return p.Status.ContainerStatuses
	}
	return nil
}

// describe is a pod's state in short.
func describe(p *corev1.Pod) string {
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

// steady creates the pods that nothing may touch, and waits for them.
func (s *scene) steady() *witness {
	s.t.Helper()
	var pods []*corev1.Pod
	var names []string
	for i := range steadyPods {
		p := plain(fmt.Sprintf("steady-%d", i))
		pods, names = append(pods, p), append(names, p.Name)
	}
	s.create(pods...)
	s.ready(patience, names...)
	return s.witness(names...)
}

// witness remembers how pods, node and Lease are now.
type witness struct {
	s     *scene
	mark  record.Mark
	pods  []*corev1.Pod
	lease *coordinationv1.Lease
}

func (s *scene) witness(names ...string) *witness {
	s.t.Helper()
	s.sync()
	w := &witness{s: s, mark: s.record.Mark()}
	v := s.record.View()
	for _, name := range names {
		p := v.Pod(s.ns, name)
		if p == nil {
			s.t.Fatalf("no pod %s", name)
		}
		w.pods = append(w.pods, p)
	}
	if w.lease = v.Lease(); w.lease == nil {
		s.t.Fatal("the node has no Lease")
	}
	return w
}

// sync makes the record complete up to now.
func (s *scene) sync() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	if err := s.record.Sync(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// untouched judges that no pod of the witness was touched since.
func (w *witness) untouched() {
	w.s.t.Helper()
	w.s.sync()
	for i, p := range record.Untouched(w.pods, w.s.record.Since(w.mark)) {
		if i == 20 {
			w.s.t.Error("… and more")
			break
		}
		w.s.t.Error(p)
	}
}

// nodeReady judges that the node was Ready all the time since.
func (w *witness) nodeReady() {
	w.s.t.Helper()
	w.s.sync()
	for _, p := range record.NodeReady(w.s.record.Since(w.mark)) {
		w.s.t.Error(p)
	}
}

// leaseAge is the greatest age that the Lease had since.
func (w *witness) leaseAge() time.Duration {
	w.s.t.Helper()
	w.s.sync()
	return record.LeaseAge(w.lease, w.s.record.Since(w.mark), time.Now())
}

// startTime is the time from a pod's creation to Ready, as the record saw both.
func (s *scene) startTime(name string) time.Duration {
	s.t.Helper()
	p := s.record.View().Pod(s.ns, name)
	if p == nil {
		s.t.Fatalf("no pod %s", name)
	}
	t := record.PodTimes(s.record.Since(0))[p.UID]
	if t.Created.IsZero() || t.Ready.IsZero() {
		s.t.Fatalf("pod %s was not seen to become Ready: %+v", name, t)
	}
	return t.Ready.Sub(t.Created)
}

// log reads what a container has written, without the runtime's prefixes.
func (s *scene) log(p *corev1.Pod, container string, restart int) (string, error) {
	dir := fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID)
	text, err := s.read(filepath.Join(s.PodLogsDir(), dir, container, fmt.Sprintf("%d.log", restart)))
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

// nameOf is the name of a pod that is there; empty of others.
func (s *scene) nameOf(uid types.UID) string {
	for _, p := range s.record.View().Pods(s.ns) {
		if p.UID == uid {
			return p.Name
		}
	}
	return ""
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
