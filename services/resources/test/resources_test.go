// Package test runs resources alone against a real bus and a device plugin.
package test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/resources"
)

const (
	// patience is how long anything may take on a busy machine.
	patience = time.Minute
	card     = "example.com/card"
	podUID   = "0d4e4c1e-7a51-4a5f-9c52-2f7f5d3f6a11"
)

// node is a real bus, podsync on it, and resources.
type node struct {
	*bustest.Node
	t        *testing.T
	cfg      resources.Config
	pods     *bus.Writer
	statuses *bus.Writer
	grants   *bus.View[*resourcesv1.PodResources]
	extended *bus.View[*resourcesv1.NodeResources]
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: bustest.New(t), t: t, cfg: resources.DefaultConfig()}
	n.cfg.Service = n.Service()
	root, err := os.MkdirTemp("", "res") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n.cfg.Kubelet = &kubeletconfig.Config{Kubelet: kubeletconfig.Default()}
	n.cfg.Kubelet.Node.RootDir = root
	n.cfg.DevicePluginsDir = filepath.Join(root, "device-plugins")
	n.Client(role.Podsync, func(c *bus.Client) {
		n.pods, n.statuses = c.Own(subject.Pods), c.Own(subject.PodStatus)
		n.grants = bus.Watch[resourcesv1.PodResources](c, subject.Resources, ">", nil)
	})
	n.Client(role.NodeStatus, func(c *bus.Client) {
		n.extended = bus.Watch[resourcesv1.NodeResources](c, subject.Node, subject.NodeResources, nil)
	})
	n.pods.Complete()
	n.statuses.Complete()
	return n
}

// start runs resources.
func (n *node) start() (stop func()) {
	return n.Run(func(ctx context.Context) error { return resources.Run(ctx, n.cfg) })
}

// dial connects as another service, or as root's tools.
func (n *node) dial() resourcesv1.ResourcesServiceClient {
	n.t.Helper()
	conn, err := unixgrpc.Dial(n.cfg.Service.Socket(role.Resources),
		unixgrpc.DialOptions{Server: role.Resources, Self: role.Podsync, Peers: n.cfg.Service.Peers()})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return resourcesv1.NewResourcesServiceClient(conn)
}

// dialFor connects to one of the kubelet's sockets.
func (n *node) dialFor(folder string) *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.cfg.Kubelet.Node.RootDir, folder, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func object() *v1.Pod {
	one := v1.ResourceList{card: resource.MustParse("1")}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID(podUID)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Limits: one, Requests: one},
		}}},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
}

// put makes podsync publish the pod.
func (n *node) put() []byte {
	n.t.Helper()
	data, err := object().Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.pods.Put(subject.PodKey(podUID), &podsyncv1.Pod{Pod: data})
	return data
}

// plugin is a device plugin with two devices.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	started atomic.Int32
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	err := s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{
		{ID: "one", Health: pluginapi.Healthy}, {ID: "two", Health: pluginapi.Unhealthy},
	}})
	if err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"CARDS": strings.Join(c.GetDevicesIds(), ",")},
		})
	}
	return out, nil
}

func (p *plugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (
	*pluginapi.PreStartContainerResponse, error) {
	p.started.Add(1)
	return &pluginapi.PreStartContainerResponse{}, nil
}

// plug serves a plugin and registers it.
func (n *node) plug() *plugin {
	n.t.Helper()
	// What is there before is removed, as by a kubelet.
	proctest.Await(n.t, patience, "the socket on which plugins register", func() bool {
		_, err := os.Lstat(filepath.Join(n.cfg.DevicePluginsDir, "kubelet.sock"))
		return err == nil
	})
	p := &plugin{}
	l, err := net.Listen("unix", filepath.Join(n.cfg.DevicePluginsDir, "card.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, p)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	n.t.Cleanup(func() { s.Stop(); <-served })
	_, err = pluginapi.NewRegistrationClient(n.dialFor("device-plugins")).Register(n.t.Context(),
		&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "card.sock", ResourceName: card},
		grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// awaitNode waits until NODE/resources has the resource with this capacity and as many that are allocatable.
func (n *node) awaitNode(capacity, allocatable int64) {
	n.t.Helper()
	proctest.Await(n.t, patience, "NODE/resources", func() bool {
		r, _ := n.extended.Get(subject.NodeResources)
		return len(r.GetResources()) == 1 && r.GetResources()[0].GetName() == card &&
			r.GetResources()[0].GetCapacity() == capacity && r.GetResources()[0].GetAllocatable() == allocatable
	})
}

// granted is the ID of the device that the bus says the pod has; empty if it has none.
func (n *node) granted() string {
	r, _ := n.grants.Get(subject.PodKey(podUID))
	for _, c := range r.GetContainers() {
		for _, d := range c.GetDevices() {
			return d.GetDevices()[0].GetId()
		}
	}
	return ""
}

// The way of a device: a plugin registers, the node has devices, a pod is granted one, its container is prepared,
// readers see it, and it is free again after the pod.
func TestTheWayOfADevice(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	plugin := n.plug()
	n.awaitNode(2, 1)
	client := n.dial()
	data := n.put()
	answer, err := client.Allocate(t.Context(), &resourcesv1.AllocateRequest{Pod: data, PlacedPodUids: []string{podUID}},
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	containers := answer.GetGranted().GetContainers()
	if len(containers) != 1 || containers[0].GetEnv()["CARDS"] != "one" || !containers[0].GetPrepare() {
		t.Fatalf("answer is %v", answer)
	}
	if _, err := client.PrepareContainer(t.Context(),
		&resourcesv1.PrepareContainerRequest{PodUid: podUID, Container: "main"}); err != nil {
		t.Fatal(err)
	}
	if plugin.started.Load() != 1 {
		t.Errorf("the plugin has prepared %d containers", plugin.started.Load())
	}
	proctest.Await(t, patience, "RESOURCES", func() bool { return n.granted() == "one" })
	readers := podresourcesv1.NewPodResourcesListerClient(n.dialFor("pod-resources"))
	proctest.Await(t, patience, "podresources", func() bool {
		list, err := readers.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
		if status.Code(err) == codes.ResourceExhausted {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.GetPodResources() {
			if d := p.GetContainers()[0].GetDevices(); p.GetName() == "web" && len(d) == 1 {
				return d[0].GetResourceName() == card && d[0].GetDeviceIds()[0] == "one"
			}
		}
		return false
	})
	list, err := client.ListPlugins(t.Context(), &resourcesv1.ListPluginsRequest{})
	if err != nil || len(list.GetPlugins()) != 1 || list.GetPlugins()[0].GetInUse() != 1 {
		t.Errorf("plugins are %v: %v", list, err)
	}

	// A restart keeps the grant, and what readers know.
	stop()
	n.start()
	again, err := client.Allocate(t.Context(),
		&resourcesv1.AllocateRequest{Pod: data, PlacedPodUids: []string{podUID}, Running: true}, grpc.WaitForReady(true))
	if err != nil || len(again.GetGranted().GetContainers()) != 1 {
		t.Fatalf("after a restart the answer is %v: %v", again, err)
	}
	if n.granted() != "one" {
		t.Errorf("after a restart the bus says %q", n.granted())
	}
	proctest.Await(t, patience, "the node's pods after a restart", func() bool {
		list, err := readers.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
		return err == nil && len(list.GetPodResources()) == 1
	})

	n.pods.Delete(subject.PodKey(podUID))
	proctest.Await(t, patience, "the end of the grant", func() bool { return n.granted() == "" })
}

// A plugin that is registered by podsync, since its socket is elsewhere.
func TestAPluginOfPodsync(t *testing.T) {
	n := newNode(t)
	n.start()
	client := n.dial()
	folder := filepath.Join(n.cfg.Kubelet.Node.RootDir, "plugins_registry")
	if err := os.Mkdir(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	endpoint := filepath.Join(folder, "card.sock")
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, &plugin{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	_, err = client.RegisterPlugin(t.Context(), &resourcesv1.RegisterPluginRequest{
		Resource: card, Endpoint: endpoint, Versions: []string{"v1beta1"},
	}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	n.awaitNode(2, 1)
	if _, err := client.DeregisterPlugin(t.Context(),
		&resourcesv1.DeregisterPluginRequest{Resource: card, Endpoint: endpoint}); err != nil {
		t.Fatal(err)
	}
	n.awaitNode(2, 0)
}

// The sockets of plugins that an earlier agent had are removed, as a kubelet does: plugins register again then.
func TestTheStartRemovesSocketsOfPlugins(t *testing.T) {
	n := newNode(t)
	if err := os.Mkdir(n.cfg.DevicePluginsDir, 0o755); err != nil { // as a DaemonSet of a plugin makes it
		t.Fatal(err)
	}
	old, file := filepath.Join(n.cfg.DevicePluginsDir, "old.sock"), filepath.Join(n.cfg.DevicePluginsDir, "DEPRECATION")
	l, err := net.Listen("unix", old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.plug()
	if _, err := os.Lstat(old); !os.IsNotExist(err) {
		t.Errorf("the socket of before: %v", err)
	}
	if _, err := os.Lstat(file); err != nil {
		t.Error(err)
	}
	for _, folder := range []string{"device-plugins", "pod-resources"} {
		info, err := os.Stat(filepath.Join(n.cfg.Kubelet.Node.RootDir, folder))
		if err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("%s is %v: %v", folder, info, err)
		}
		info, err = os.Stat(filepath.Join(n.cfg.Kubelet.Node.RootDir, folder, "kubelet.sock"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket in %s is %v: %v", folder, info, err)
		}
	}
}
