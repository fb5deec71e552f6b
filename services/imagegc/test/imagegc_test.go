// Package test runs imagegc alone against a real bus and a fake runtime.
package test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/imagegc"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// patience is how long anything may take on a busy machine.
const patience = time.Minute

const podUID = "0d4e4c1e-7a51-4a5f-9c52-2f7f5d3f6a11"

// node is a real bus, a fake runtime behind the gateway's socket, podsync on the bus, and imagegc.
type node struct {
	*bustest.Node
	t       *testing.T
	runtime *fake.Runtime
	cfg     imagegc.Config
	pods    *bus.Writer
	listed  *bus.View[*imagegcv1.Images]
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: bustest.New(t), t: t, runtime: fake.NewRuntime(time.Now), cfg: imagegc.DefaultConfig()}
	n.cfg.Service, n.cfg.StateDir = n.Service(), t.TempDir()
	kubelet := kubeletconfig.Default()
	kubelet.ImageMinimumGCAge = metav1.Duration{}
	n.cfg.Kubelet = &kubeletconfig.Config{Kubelet: kubelet}
	stop, err := n.runtime.Serve(n.cfg.Service.CRISocket(role.ImageGC))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	n.Client(role.Podsync, func(c *bus.Client) { n.pods = c.Own(subject.Pods) })
	n.Client(role.NodeStatus, func(c *bus.Client) {
		n.listed = bus.Watch[imagegcv1.Images](c, subject.Node, subject.NodeImages, nil)
	})
	return n
}

// start runs imagegc.
func (n *node) start() (stop func()) {
	return n.Run(func(ctx context.Context) error { return imagegc.Run(ctx, n.cfg) })
}

// dial connects as another service, or as root's tools.
func (n *node) dial(as role.Role) imagegcv1.ImageGCServiceClient {
	n.t.Helper()
	conn, err := unixgrpc.Dial(n.cfg.Service.Socket(role.ImageGC),
		unixgrpc.DialOptions{Server: role.ImageGC, Self: as, Peers: n.cfg.Service.Peers()})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return imagegcv1.NewImageGCServiceClient(conn)
}

// put makes podsync publish a pod with this image.
func (n *node) put(image string) {
	n.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID(podUID)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: image}}},
	}
	data, err := pod.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.pods.Put(subject.PodKey(podUID), &podsyncv1.Pod{Pod: data})
	n.pods.Complete()
}

// sizes waits until NODE/images has images of these sizes.
func (n *node) sizes(want ...int64) *imagegcv1.Images {
	n.t.Helper()
	var list *imagegcv1.Images
	proctest.Await(n.t, patience, "NODE/images", func() bool {
		var got []int64
		list, _ = n.listed.Get(subject.NodeImages)
		for _, image := range list.GetImages() {
			got = append(got, image.GetSizeBytes())
		}
		return slices.Equal(got, want)
	})
	return list
}

func (n *node) images() []string {
	n.t.Helper()
	resp, err := runtimeapi.NewImageServiceClient(n.runtime.Conn()).ListImages(n.t.Context(),
		&runtimeapi.ListImagesRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for _, image := range resp.GetImages() {
		names = append(names, image.GetRepoTags()...)
	}
	slices.Sort(names)
	return names
}

// pull makes an image of this size present.
func (n *node) pull(name string, size uint64) {
	n.t.Helper()
	n.runtime.SetPull(name, fake.Pull{Size: size})
	_, err := runtimeapi.NewImageServiceClient(n.runtime.Conn()).PullImage(n.t.Context(),
		&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		n.t.Fatal(err)
	}
}

// The images of the node are listed, the largest first, and a request removes those that no pod needs.
func TestListAndRequest(t *testing.T) {
	n := newNode(t)
	n.pull("registry.example/small:1", 10)
	n.pull("registry.example/large:1", 30)
	n.pull("registry.example/used:1", 20)
	n.put("registry.example/used:1")
	n.start()
	list := n.sizes(30, 20, 10)
	if names := list.GetImages()[0].GetNames(); len(names) != 2 || names[1] != "registry.example/large:1" {
		t.Errorf("names of the largest: %q", names)
	}
	var answer *imagegcv1.DeleteUnusedImagesResponse
	evictor := n.dial(role.Evictor)
	proctest.Await(t, patience, "the request", func() bool { // the pods may not be known yet
		var err error
		answer, err = evictor.DeleteUnusedImages(t.Context(), &imagegcv1.DeleteUnusedImagesRequest{},
			grpc.WaitForReady(true))
		return err == nil
	})
	if answer.GetBytesFreed() != 40 || answer.GetImagesRemoved() != 2 {
		t.Errorf("answer: %v", answer)
	}
	if got := n.images(); !slices.Equal(got, []string{"registry.example/used:1"}) {
		t.Errorf("left: %q", got)
	}
}

// While the bus is away, it is not known which images pods need.
func TestWithoutTheBusNothingIsRemoved(t *testing.T) {
	n := newNode(t)
	n.StopBus()
	n.pull("registry.example/unused:1", 10)
	n.start()
	_, err := n.dial(role.Evictor).DeleteUnusedImages(t.Context(), &imagegcv1.DeleteUnusedImagesRequest{},
		grpc.WaitForReady(true))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the request: %v", err)
	}
	if got := n.images(); len(got) != 1 {
		t.Errorf("left: %q", got)
	}
}

// The ages are saved at the start, and read again.
func TestAgesSurviveARestart(t *testing.T) {
	n := newNode(t)
	n.pull("registry.example/a:1", 10)
	n.put("registry.example/a:1")
	path := filepath.Join(n.cfg.StateDir, "ages.json")
	saved := func() string {
		var text []byte
		proctest.Await(t, patience, "the file of ages", func() bool {
			var err error
			text, err = os.ReadFile(path)
			return err == nil
		})
		return string(text)
	}
	stop := n.start()
	first := saved()
	stop()
	n.start()
	proctest.Await(t, patience, "another file of ages", func() bool { return saved() != first })
	if _, err := os.Stat(path + ".unreadable"); err == nil {
		t.Error("the file was not read")
	}
}
