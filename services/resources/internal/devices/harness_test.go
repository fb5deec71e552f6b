package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/answer"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/plugin"
)

// gpu and nic are resources.
const (
	gpu = "example.com/gpu"
	nic = "example.com/nic"
)

// fake is a plugin without a socket.
type fake struct {
	prefers, prepares bool
	// hangs: no call is answered but within its deadline. Refuses is what Allocate and Prepare answer.
	hangs   bool
	refuses error
	prefer  func(available, mustInclude []string, size int) []string

	mu    sync.Mutex
	calls []string
	conns []*fakeConn
	list  answer.Devices
	down  bool
}

// fakeConn is one connection to it.
type fakeConn struct {
	*fake
	lists  chan answer.Devices
	closed chan struct{}
	close  func()
}

func (f *fake) dial(context.Context, string, bool) (plugin.Plugin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errors.New("failed to dial device plugin: connection refused")
	}
	c := &fakeConn{fake: f, lists: make(chan answer.Devices, 100), closed: make(chan struct{})}
	c.close = sync.OnceFunc(func() { close(c.closed) })
	if f.list != nil {
		c.lists <- f.list
	}
	f.conns = append(f.conns, c)
	return c, nil
}

// reports sends a list to all connections: devices that are healthy, or not with a "!".
func (f *fake) reports(ids ...string) {
	devices := answer.Devices{}
	for _, id := range ids {
		name, bad := strings.CutPrefix(id, "!")
		devices[name] = answer.Device{Healthy: !bad, NUMA: []int64{int64(len(name) % 2)}}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list, f.down = devices, false
	for _, c := range f.conns {
		select {
		case c.lists <- devices:
		default:
		}
	}
}

// dies ends all connections.
func (f *fake) dies() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = true
	for _, c := range f.conns {
		c.close()
	}
	f.conns = nil
}

func (f *fake) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (c *fakeConn) call(ctx context.Context, what string) error {
	c.mu.Lock()
	c.calls = append(c.calls, what)
	hangs, refuses := c.hangs, c.refuses
	c.mu.Unlock()
	if !hangs {
		return refuses
	}
	ctx, cancel := context.WithTimeout(ctx, plugin.CallTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-c.closed:
		return status.Error(codes.Unavailable, "the connection ended")
	}
}

func (c *fakeConn) Prefers() bool  { return c.prefers }
func (c *fakeConn) Prepares() bool { return c.prepares }
func (c *fakeConn) Close()         { c.close() }

func (c *fakeConn) Watch(ctx context.Context, receive func(answer.Devices)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return errors.New("ListAndWatch ended: EOF")
		case list := <-c.lists:
			receive(list)
		}
	}
}

func (c *fakeConn) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	if err := c.call(ctx, "allocate "+strings.Join(ids, ",")); err != nil {
		return nil, err
	}
	return &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": strings.Join(ids, ",")}}, nil
}

func (c *fakeConn) Preferred(ctx context.Context, available, mustInclude []string, size int) ([]string, error) {
	what := fmt.Sprintf("prefer %d of %s with %s", size, strings.Join(available, ","), strings.Join(mustInclude, ","))
	if err := c.call(ctx, what); err != nil {
		return nil, err
	}
	return c.prefer(available, mustInclude, size), nil
}

func (c *fakeConn) Prepare(ctx context.Context, ids []string) error {
	return c.call(ctx, "prepare "+strings.Join(ids, ","))
}

// node has a manager that runs, and plugins by endpoint.
type node struct {
	*Manager
	t       *testing.T
	folder  string
	plugins map[string]*fake
	options Options
	metrics *prometheus.Registry
	end     func()

	mu      sync.Mutex
	changed Change
	// counts are all that Node said after a change.
	counts []string
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, folder: t.TempDir(), plugins: map[string]*fake{}}
	n.options = Options{Wait: 3 * time.Minute}
	n.start()
	t.Cleanup(func() { n.end() })
	return n
}

// start begins a manager with what the file has.
func (n *node) start() {
	o := n.options
	n.metrics = prometheus.NewRegistry()
	o.Folder, o.Metrics, o.Log, o.Changed = n.folder, n.metrics, slog.New(slog.DiscardHandler), n.note
	m := New(o)
	m.dial = func(ctx context.Context, endpoint string, once bool) (plugin.Plugin, error) {
		return n.plugin(endpoint).dial(ctx, endpoint, once)
	}
	n.Manager = m
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan struct{})
	n.end = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		if err := m.Run(ctx); err != nil {
			n.t.Error(err)
		}
	}()
	synctest.Wait()
}

// restart ends the manager and begins another one.
func (n *node) restart() {
	n.end()
	n.start()
}

func (n *node) note(c Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed.Node = n.changed.Node || c.Node
	n.changed.Pods = append(n.changed.Pods, c.Pods...)
	if c.Node {
		n.counts = append(n.counts, show(n.Node()))
	}
}

// changes returns what has changed since the last call.
func (n *node) changes() string {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.changed
	n.changed = Change{}
	return fmt.Sprint(c.Node, c.Pods)
}

// plugin returns the plugin of an endpoint, which is there without devices if it was not.
func (n *node) plugin(endpoint string) *fake {
	endpoint = n.path(endpoint)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.plugins[endpoint] == nil {
		n.plugins[endpoint] = &fake{}
	}
	return n.plugins[endpoint]
}

func (n *node) path(endpoint string) string {
	return (&Manager{o: Options{Folder: n.folder}}).path(endpoint)
}

// register has a plugin register with these devices.
func (n *node) register(name, endpoint string, ids ...string) *fake {
	n.t.Helper()
	f := n.plugin(endpoint)
	f.mu.Lock()
	f.down = false
	f.mu.Unlock()
	if err := n.Register(n.t.Context(), name, endpoint, []string{"v1beta1"}); err != nil {
		n.t.Fatal(err)
	}
	if ids != nil {
		f.reports(ids...)
	}
	synctest.Wait()
	return f
}

// show prints what a node has: resource allocatable/capacity.
func show(r *resourcesv1.NodeResources) string {
	if r == nil {
		return "nothing"
	}
	var all []string
	for _, r := range r.Resources {
		all = append(all, fmt.Sprintf("%s %d/%d", r.Name, r.Allocatable, r.Capacity))
	}
	return strings.Join(all, ", ")
}

func (n *node) has(want string) {
	n.t.Helper()
	synctest.Wait()
	if got := show(n.Node()); got != want {
		n.t.Errorf("the node has %s, want %s", got, want)
	}
}

// asks is a container with limits: "init", "sidecar" and "app" begin its name.
func asks(name string, counts map[string]int64) v1.Container {
	c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("1"),
	}}}
	for name, n := range counts {
		c.Resources.Limits[v1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return c
}

// podOf has these containers in their order.
func podOf(uid types.UID, containers ...v1.Container) *v1.Pod {
	pod := &v1.Pod{}
	pod.UID = uid
	always := v1.ContainerRestartPolicyAlways
	for _, c := range containers {
		switch {
		case strings.HasPrefix(c.Name, "init"):
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case strings.HasPrefix(c.Name, "sidecar"):
			c.RestartPolicy = &always
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	return pod
}

// podWith has one container that asks for so many GPUs.
func podWith(uid types.UID, n int64) *v1.Pod {
	return podOf(uid, asks("app", map[string]int64{gpu: n}))
}

// allocate asks for a pod, with all pods that have something placed.
func (n *node) allocate(pod *v1.Pod, running bool) string {
	n.t.Helper()
	time.Sleep(time.Nanosecond) // a later call has a later time
	placed := slices.Collect(maps.Keys(n.Pods()))
	return n.allocateWith(n.t.Context(), pod, Placed{UIDs: placed}, running)
}

func (n *node) allocateWith(ctx context.Context, pod *v1.Pod, placed Placed, running bool) string {
	n.t.Helper()
	r, err := n.Allocate(ctx, pod, placed, running)
	return decision(r, err)
}

func decision(r *resourcesv1.AllocateResponse, err error) string {
	switch d := r.GetDecision().(type) {
	case *resourcesv1.AllocateResponse_Granted:
		return "granted " + devicesOf(d.Granted)
	case *resourcesv1.AllocateResponse_Wait_:
		return "wait for " + d.Wait.Resource + ": " + d.Wait.Message
	case *resourcesv1.AllocateResponse_Rejection_:
		return d.Rejection.Reason + ": " + d.Rejection.Message
	}
	return fmt.Sprint("error ", err)
}

// devicesOf prints containers with their devices: an unhealthy one with a "!", an unknown one with a "?".
func devicesOf(r *resourcesv1.PodResources) string {
	var all []string
	for _, c := range r.GetContainers() {
		text := c.Name
		for _, devices := range c.Devices {
			text += " " + strings.TrimPrefix(devices.Resource, "example.com/") + ":"
			var ids []string
			for _, d := range devices.Devices {
				ids = append(ids, map[resourcesv1.Health]string{2: "!", 3: "?"}[d.Health]+d.Id)
			}
			text += strings.Join(ids, ",")
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func (n *node) wants(got, want string) {
	n.t.Helper()
	if got != want {
		n.t.Errorf("the decision is\n%s, want\n%s", got, want)
	}
}
