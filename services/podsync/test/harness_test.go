// Package test runs the podsync process alone against a real bus and a fake runtime.
//
// There is no API server, and a peer exists only if a test plays it.
package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/podsync"
)

func TestMain(m *testing.M) {
	if podsync.RunChild() { // the children are of this binary
		return
	}
	proctest.Program(func() { service.Main(podsync.Command()) })
	os.Exit(m.Run())
}

const (
	// soon is what takes a moment, on a machine that may be busy.
	soon = 30 * time.Second
	// image is what the runtime has.
	image = "example.com/app:1"
)

// node is what podsync finds on its node.
type node struct {
	*bustest.Node
	t         *testing.T
	root      string // --root-dir
	manifests string
	runtime   *fake.Runtime
	endpoint  string
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{
		Node:      bustest.New(t),
		t:         t,
		root:      filepath.Join(dir, "root"),
		manifests: filepath.Join(dir, "manifests"),
		runtime:   fake.NewRuntime(time.Now),
	}
	unmountRoot(t, n.root)
	if err := os.Mkdir(n.manifests, 0o700); err != nil {
		t.Fatal(err)
	}
	n.runtime.AddImage(image)
	n.endpoint = filepath.Join(n.Dir(), "runtime.sock")
	stop, err := n.runtime.Serve(n.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return n
}

// unmountRoot unmounts a root folder when the test ends: podsync binds it onto itself where nothing is shared.
func unmountRoot(t *testing.T, dir string) {
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// config writes podsync's file of configuration, with further lines.
func (n *node) config(more ...string) string {
	n.t.Helper()
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%s
failCgroupV1: false
cgroupsPerQOS: false
enforceNodeAllocatable: [none]
staticPodPath: %s
podLogsDir: %s
fileCheckFrequency: 1s
# The packet filter is the machine's.
makeIPTablesUtilChains: false
%s`, n.endpoint, n.manifests, filepath.Join(n.root, "logs"), strings.Join(more, "\n"))
	file := filepath.Join(n.t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return file
}

// start starts podsync; a flag that is given again counts.
func (n *node) start(args ...string) *proctest.Process {
	n.t.Helper()
	s := n.Service()
	args = append([]string{
		"--config=" + n.config(), "--root-dir=" + n.root, "--hostname-override=" + bustest.NodeName,
		"--runtime-dir=" + s.RuntimeDir, "--container-log-links=",
	}, args...)
	return proctest.Start(n.t, "podsync", args...)
}

// put writes the manifest of a pod with one container.
func (n *node) put(name string, more ...string) {
	n.t.Helper()
	n.write(name+".yaml", manifest(name, more...))
}

// manifest is a pod's, with further lines in its metadata.
func manifest(name string, more ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: ns
%[3]sspec:
  terminationGracePeriodSeconds: 2
  containers: [{name: c-%[1]s, image: "%[2]s"}]
`, name, image, strings.Join(more, ""))
}

// write writes a manifest's file at once, as one should.
func (n *node) write(file, text string) {
	n.t.Helper()
	hidden := filepath.Join(n.manifests, "."+file)
	if err := errors.Join(os.WriteFile(hidden, []byte(text), 0o600),
		os.Rename(hidden, filepath.Join(n.manifests, file))); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(name string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.manifests, name+".yaml")); err != nil {
		n.t.Fatal(err)
	}
}

// running are the ids of a pod's containers that run, by its manifest's name.
func (n *node) running(name string) []string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	got, err := runtimeapi.NewRuntimeServiceClient(n.runtime.Conn()).ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{"io.kubernetes.pod.name": name + "-" + bustest.NodeName},
		}})
	if err != nil {
		n.t.Fatal(err)
	}
	var ids []string
	for _, c := range got.GetContainers() {
		ids = append(ids, c.GetId())
	}
	return ids
}

// runs waits until so many containers of a pod run, and returns the first one's id.
func (n *node) runs(name string) string {
	n.t.Helper()
	took := proctest.Await(n.t, soon, "pod "+name+" runs", func() bool { return len(n.running(name)) == 1 })
	n.t.Logf("pod %s runs after %s", name, took.Round(time.Millisecond))
	return n.running(name)[0]
}

func (n *node) gone(name string) {
	n.t.Helper()
	proctest.Await(n.t, soon, "pod "+name+" has ended", func() bool { return len(n.running(name)) == 0 })
}

// count is how many containers of a pod run, by the runtime's own events.
type count struct {
	n       *node
	mu      sync.Mutex
	running map[string]int  // by sandbox
	seen    map[string]bool // containers, by id
	highest int
}

// counts counts the containers of a pod from now on, by its manifest's name.
func (n *node) counts(name string) *count {
	n.t.Helper()
	c := &count{n: n, running: map[string]int{}, seen: map[string]bool{}}
	conn, err := grpc.NewClient("unix://"+n.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	var reading sync.WaitGroup
	n.t.Cleanup(func() { _ = conn.Close(); reading.Wait() })
	events, err := runtimeapi.NewRuntimeServiceClient(conn).GetContainerEvents(context.Background(),
		&runtimeapi.GetEventsRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	reading.Go(func() {
		for {
			event, err := events.Recv()
			if err != nil {
				return // the test has ended; before it has, the count does not come to what is awaited
			}
			if event.GetPodSandboxStatus().GetMetadata().GetName() == name+"-"+bustest.NodeName {
				c.add(event)
			}
		}
	})
	proctest.Await(n.t, soon, "the runtime lists its containers",
		func() bool { return n.runtime.EventStreams() == 1 })
	return c
}

func (c *count) add(event *runtimeapi.ContainerEventResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sandbox := event.GetPodSandboxStatus().GetId()
	c.running[sandbox] = 0
	for _, s := range event.GetContainersStatuses() {
		if s.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			c.running[sandbox]++
			c.seen[s.GetId()] = true
		}
	}
	now := 0
	for _, running := range c.running {
		now += running
	}
	c.highest = max(c.highest, now)
}

// most is how many ran at the most at one time, up to the start of a container.
func (c *count) most(upTo string) int {
	c.n.t.Helper()
	proctest.Await(c.n.t, soon, "the runtime has reported container "+upTo, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.seen[upTo]
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.highest
}

// reader is what a service on the bus reads of podsync.
type reader struct {
	pods     *bus.View[*podsyncv1.Pod]
	statuses *bus.View[*podsyncv1.PodStatus]
}

func (n *node) reads() *reader {
	n.t.Helper()
	r := &reader{}
	n.Client(role.NodeAPI, func(c *bus.Client) {
		r.pods = bus.Watch[podsyncv1.Pod](c, subject.Pods, ">", nil)
		r.statuses = bus.Watch[podsyncv1.PodStatus](c, subject.PodStatus, ">", nil)
	})
	return r
}

// reported are the names of the pods that a reader has, each with what it knows of its one container.
func (r *reader) reported() map[string]string {
	reported := map[string]string{}
	for key, m := range r.pods.All() {
		p := &v1.Pod{}
		if err := p.Unmarshal(m.GetPod()); err != nil {
			reported[key] = err.Error()
			continue
		}
		name := strings.TrimSuffix(p.Name, "-"+bustest.NodeName)
		reported[name] = "no status"
		if s, ok := r.statuses.Get(key); ok && len(s.GetContainers()) == 1 {
			reported[name] = fmt.Sprintf("%s %s", s.GetContainers()[0].GetState(), s.GetContainers()[0].GetId())
		}
	}
	return reported
}

// state is what is reported of a container that runs.
func state(id string) string {
	return fmt.Sprintf("%s %s", podsyncv1.ContainerState_CONTAINER_STATE_RUNNING, id)
}
