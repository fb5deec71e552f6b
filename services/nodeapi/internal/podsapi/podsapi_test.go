package podsapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/microlet/microlet/services/internal/calllimit"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

const slack = 30 * time.Second

// source has the pods that a test gives it.
type source struct {
	changed func(uid string)

	mu       sync.Mutex
	pods     map[string]*nodepods.Pod
	complete bool
}

func (s *source) Get(uid string) (*nodepods.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[uid]
	return p, ok
}

func (s *source) Synced() bool { return true }

func (s *source) Complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.complete
}

func (s *source) put(p *nodepods.Pod) {
	s.mu.Lock()
	s.pods[string(p.UID)] = p
	s.mu.Unlock()
	s.changed(string(p.UID))
}

func (s *source) remove(uid string) {
	s.mu.Lock()
	delete(s.pods, uid)
	s.mu.Unlock()
	s.changed(uid)
}

func (s *source) setComplete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = true
}

// pod is one that podsync has reported, of about this size.
func pod(uid string, size int) *nodepods.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name-" + uid, UID: types.UID(uid)}}
	p.Annotations = map[string]string{"text": strings.Repeat("x", size)}
	p.Status.Phase = v1.PodRunning
	return &nodepods.Pod{Pod: p, Desired: p, Reported: true}
}

// node is an API on a socket.
type node struct {
	*source
	api    *API
	socket string
	stop   func()
}

// start starts an API, of which the test may change something first.
func start(t *testing.T, change func(*API)) *node {
	t.Helper()
	n := &node{
		source: &source{pods: map[string]*nodepods.Pod{}}, socket: filepath.Join(proctest.TempDir(t, 0o750), "s"),
	}
	var err error
	n.api, err = New(Options{
		Listen:  func(context.Context) (net.Listener, error) { return net.Listen("unix", n.socket) },
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, func(changed func(uid string)) Source {
		n.changed = changed
		return n.source
	})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(n.api)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.api.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) client(t *testing.T) podsv1alpha1.PodsClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podsv1alpha1.NewPodsClient(conn)
}

func decode(t *testing.T, data []byte) v1.Pod {
	t.Helper()
	var p v1.Pod
	if err := p.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return p
}

// next is the next event, as its type and the pod's UID.
func next(t *testing.T, w podsv1alpha1.Pods_WatchPodsClient) (string, v1.Pod) {
	t.Helper()
	e, err := w.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if e.GetPod() == nil {
		return e.GetType().String(), v1.Pod{}
	}
	p := decode(t, e.GetPod())
	return e.GetType().String() + " " + string(p.UID), p
}

func expectNext(t *testing.T, w podsv1alpha1.Pods_WatchPodsClient, want ...string) {
	t.Helper()
	for _, one := range want {
		if got, _ := next(t, w); got != one {
			t.Fatalf("the next event is %q, want %q", got, one)
		}
	}
}

func TestBeforeAllPodsAreKnown(t *testing.T) {
	n := start(t, nil)
	c := n.client(t)
	n.put(pod("a", 10))
	calls := func() (errs []error) {
		_, err := c.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
		errs = append(errs, err)
		_, err = c.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "a"})
		errs = append(errs, err)
		w, err := c.WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		return append(errs, err)
	}
	for _, err := range calls() {
		if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "Kubelet is initializing" {
			t.Errorf("before podsync is complete: %v", err)
		}
	}
	n.setComplete()
	for _, err := range calls() {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestListAndGet(t *testing.T) {
	n := start(t, nil)
	n.setComplete()
	c := n.client(t)
	empty, err := c.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
	if err != nil || len(empty.GetPods()) != 0 {
		t.Errorf("a node without pods has %v, %v", empty, err)
	}

	resized := pod("c", 5000)
	desired := *resized.Pod
	desired.Spec.Containers = []v1.Container{{Name: "asked"}}
	resized.Desired = &desired
	n.put(resized)
	n.put(pod("a", 10))
	fresh := pod("b", 10) // podsync has not reported it yet
	fresh.Reported, fresh.Status = false, v1.PodStatus{Conditions: []v1.PodCondition{
		{Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}}
	n.put(fresh)

	list, err := c.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
	if err != nil || len(list.GetPods()) != 3 {
		t.Fatalf("the list has %d pods, %v", len(list.GetPods()), err)
	}
	for i, uid := range []string{"a", "b", "c"} {
		got, err := c.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: uid})
		if err != nil || !slices.Equal(got.GetPod(), list.GetPods()[i]) || string(decode(t, got.GetPod()).UID) != uid {
			t.Errorf("pod %s is %v, %v", uid, got, err)
		}
	}
	if p := decode(t, list.GetPods()[2]); len(p.Spec.Containers) != 1 || p.Status.Phase != v1.PodRunning ||
		len(p.Annotations["text"]) != 5000 {
		t.Errorf("pod c is %v", p)
	}
	if s := decode(t, list.GetPods()[1]).Status; s.Phase != v1.PodPending || len(s.Conditions) != 2 ||
		s.Conditions[0].Status != v1.ConditionFalse || s.Conditions[0].Reason != "ContainersNotReady" ||
		s.Conditions[1].Status != v1.ConditionTrue {
		t.Errorf("a pod that was not reported yet has the status %v", s)
	}
	if fresh.Status.Conditions[0].Status != v1.ConditionTrue {
		t.Error("a pod that others share was changed")
	}
	if _, err := c.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("a pod that is not there: %v", err)
	}

	broken := pod("x", 10)
	broken.Err = errors.New("this is no pod")
	n.put(broken)
	for what, err := range map[string]error{
		"list": second(c.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})),
		"get":  second(c.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "x"})),
	} {
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "this is no pod") {
			t.Errorf("%s of a pod that cannot be read: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestWatch(t *testing.T) {
	n := start(t, nil)
	n.setComplete()
	n.put(pod("b", 10))
	n.put(pod("a", 3000))
	w, err := n.client(t).WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expectNext(t, w, "ADDED a", "ADDED b", "INITIAL_SYNC_COMPLETE")
	n.put(pod("c", 10))
	n.put(pod("c", 5000))
	n.changed("c") // the same once more, as of the other bucket
	n.remove("c")
	n.changed("c")
	n.put(pod("a", 10))
	expectNext(t, w, "ADDED c", "MODIFIED c")
	what, gone := next(t, w)
	if what != "DELETED c" || gone.Name != "name-c" || gone.Namespace != "ns" || len(gone.Annotations) != 0 {
		t.Errorf("a pod that is gone is %s %v", what, gone)
	}
	expectNext(t, w, "MODIFIED a")

	t.Log("nodeapi ends")
	n.stop()
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ends with %v", err)
	}
	if n.api.feed.watchers == nil || len(n.api.feed.watchers) != 0 || len(n.api.feed.events) != 0 {
		t.Error("the watcher is still there")
	}
	watches := n.api.metrics.byMethod["WatchPods"]
	if testutil.CollectAndCount(watches) != 1 ||
		testutil.ToFloat64(watches.WithLabelValues("v1alpha1", "Canceled")) != 1 {
		t.Error("the watch is not counted")
	}
}

// TestAWatcherThatIsTooSlow is dropped with the event after its hundredth, and keeps no event of others.
func TestAWatcherThatIsTooSlow(t *testing.T) {
	n := start(t, nil)
	n.setComplete()
	_, slow, err := n.api.feed.watch()
	if err != nil {
		t.Fatal(err)
	}
	_, fast, err := n.api.feed.watch()
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxBehind {
		n.put(pod("a", 10+i))
		if _, err := fast.take(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := slow.take(t.Context()); err != nil {
		t.Fatalf("%d behind: %v", maxBehind, err)
	}
	n.put(pod("a", 10))
	n.put(pod("a", 11))
	if _, err := slow.take(t.Context()); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%d behind: %v", maxBehind+1, err)
	}
	if n := testutil.ToFloat64(n.api.metrics.dropped); n != 1 {
		t.Errorf("%v dropped", n)
	}
	if len(n.api.feed.events) != 2 {
		t.Errorf("%d events are kept, of which the other watcher has taken all but two", len(n.api.feed.events))
	}
	for range 2 {
		if _, err := fast.take(t.Context()); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fast.take(ctx); status.Code(err) != codes.Canceled {
		t.Errorf("who leaves: %v", err)
	}
	slow.end()
	fast.end()
	if len(n.api.feed.watchers) != 0 || len(n.api.feed.events) != 0 {
		t.Error("watchers or events are left")
	}
}

func TestTooManyWatchers(t *testing.T) {
	n := start(t, nil)
	n.setComplete()
	for range maxWatches {
		if _, _, err := n.api.feed.watch(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := n.api.feed.watch(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}

// TestTheRateLimit is that of all clients together, and not of watches.
func TestTheRateLimit(t *testing.T) {
	n := start(t, func(a *API) {
		if a.limiter.Limit() != calllimit.PerSecond || a.limiter.Burst() != calllimit.Burst {
			t.Errorf("the limit is %v with a burst of %d", a.limiter.Limit(), a.limiter.Burst())
		}
		a.limiter.SetLimit(0) // so that the burst is all, however slow the machine is
	})
	n.setComplete()
	rejected := 0
	for range 3 {
		c := n.client(t)
		for range 2 * calllimit.Burst {
			_, err := c.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: "a"})
			switch s := status.Convert(err); s.Code() {
			case codes.NotFound:
			case codes.ResourceExhausted:
				rejected++
				if s.Message() != "rejected by rate limit" {
					t.Error(err)
				}
			default:
				t.Error(err)
			}
		}
	}
	if rejected != 5*calllimit.Burst {
		t.Errorf("%d of %d calls were rejected", rejected, 6*calllimit.Burst)
	}
	c := n.client(t)
	for range 2 * calllimit.Burst {
		w, err := c.WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expectNext(t, w, "INITIAL_SYNC_COMPLETE")
	}
	counted := testutil.ToFloat64(n.api.metrics.byMethod["GetPod"].WithLabelValues("v1alpha1", "NotFound"))
	if int(counted) != 6*calllimit.Burst-rejected ||
		testutil.ToFloat64(n.api.metrics.total.WithLabelValues("v1alpha1", "NotFound")) != counted {
		t.Errorf("%v calls are counted, and %d were rejected", counted, rejected)
	}
}

// TestDescription: the service is the one of api.proto.
func TestDescription(t *testing.T) {
	want := podsv1alpha1.Pods_ServiceDesc
	var methods, known []string
	for _, m := range want.Methods {
		methods = append(methods, m.MethodName)
	}
	for _, s := range want.Streams {
		methods = append(methods, fmt.Sprint(s.StreamName, s.ServerStreams, s.ClientStreams))
	}
	for _, m := range description.Methods {
		known = append(known, m.MethodName)
	}
	for _, s := range description.Streams {
		known = append(known, fmt.Sprint(s.StreamName, s.ServerStreams, s.ClientStreams))
	}
	if !slices.Equal(methods, known) || description.ServiceName != want.ServiceName {
		t.Errorf("served are %v of %s, want %v of %s", known, description.ServiceName, methods, want.ServiceName)
	}
}

func (b *budget) now() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

// TestListsShareABudget has clients list more at one time than may be kept for them.
func TestListsShareABudget(t *testing.T) {
	const size, number, budgeted = 256 << 10, 12, 4 << 20
	n := start(t, func(a *API) { a.lists = newBudget(budgeted) })
	n.setComplete()
	for i := range number {
		n.put(pod(fmt.Sprint("pod-", i), size))
	}
	ended := make(chan struct{})
	highest := make(chan int64, 1)
	go func() {
		most := int64(0)
		for {
			select {
			case <-ended:
				highest <- most
				return
			case <-time.After(100 * time.Microsecond):
				most = max(most, n.api.lists.now())
			}
		}
	}()
	var clients sync.WaitGroup
	for range 8 {
		c := n.client(t)
		clients.Go(func() {
			list, err := c.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{})
			if err != nil || len(list.GetPods()) != number || len(decode(t, list.GetPods()[3]).Annotations["text"]) != size {
				t.Errorf("%d pods, %v", len(list.GetPods()), err)
			}
		})
	}
	clients.Wait()
	close(ended)
	if most := <-highest; most < size || most > budgeted {
		t.Errorf("at most %d bytes were kept, of %d", most, budgeted)
	}
	proctest.Await(t, slack, "all is given back", func() bool { return n.api.lists.now() == 0 })
}

// TestAListLargerThanTheBudget is answered, alone.
func TestAListLargerThanTheBudget(t *testing.T) {
	n := start(t, func(a *API) { a.lists = newBudget(1 << 10) })
	n.setComplete()
	n.put(pod("a", 1<<20))
	var clients sync.WaitGroup
	for range 5 {
		c := n.client(t)
		clients.Go(func() {
			if list, err := c.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{}); err != nil || len(list.GetPods()) != 1 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	clients.Wait()
	proctest.Await(t, slack, "all is given back", func() bool { return n.api.lists.now() == 0 })
}

// TestAClientThatTakesNothing loses its connection, so that it keeps nothing from others.
func TestAClientThatTakesNothing(t *testing.T) {
	n := start(t, func(a *API) { a.patience, a.events = 5*time.Second, newBudget(2<<20) })
	n.setComplete()
	for i := range 4 {
		n.put(pod(fmt.Sprint("pod-", i), 1<<20))
	}
	stuck, err := n.client(t).WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, slack, "the budget is used up", func() bool { return n.api.events.now() > 1<<20 })
	other, err := n.client(t).WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expectNext(t, other, "ADDED pod-0", "ADDED pod-1", "ADDED pod-2", "ADDED pod-3", "INITIAL_SYNC_COMPLETE")
	proctest.Await(t, slack, "all is given back", func() bool { return n.api.events.now() == 0 })
	for err == nil {
		_, err = stuck.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the watch of the client that takes nothing ends with %v", err)
	}
}

// TestAClientThatLeaves gives back what it has not taken, and keeps its connection.
func TestAClientThatLeaves(t *testing.T) {
	n := start(t, func(a *API) { a.patience = 3 * time.Second })
	n.setComplete()
	for i := range 4 {
		n.put(pod(fmt.Sprint("pod-", i), 1<<20))
	}
	c := n.client(t)
	stays, err := c.WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expectNext(t, stays, "ADDED pod-0", "ADDED pod-1", "ADDED pod-2", "ADDED pod-3", "INITIAL_SYNC_COMPLETE")
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := c.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{}); err != nil {
			t.Fatal(err)
		}
		proctest.Await(t, slack, "something is sent", func() bool { return n.api.events.now() > 0 })
		cancel()
		proctest.Await(t, slack, "all is given back", func() bool { return n.api.events.now() == 0 })
	}
	time.Sleep(2 * n.api.patience)
	n.remove("pod-1")
	expectNext(t, stays, "DELETED pod-1")
}

// TestTheSocketComesLater has podsync away at first.
func TestTheSocketComesLater(t *testing.T) {
	tries := 0
	n := start(t, func(a *API) {
		listen := a.o.Listen
		a.o.Listen = func(ctx context.Context) (net.Listener, error) {
			if tries++; tries == 1 {
				return nil, io.EOF
			}
			return listen(ctx)
		}
	})
	n.setComplete()
	if _, err := n.client(t).ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{}); err != nil {
		t.Error(err)
	}
}
