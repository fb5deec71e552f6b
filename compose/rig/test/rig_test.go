//go:build long

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/rig"
)

// progress writes what a rig says into the test's log.
type progress struct{ t *testing.T }

func (p progress) Write(text []byte) (int, error) {
	p.t.Log(strings.TrimSuffix(string(text), "\n"))
	return len(text), nil
}

func up(t *testing.T, name string, agent rig.Agent) *rig.Instance {
	t.Helper()
	return upWith(t, rig.Options{Name: name, Agent: agent, Out: progress{t}})
}

func upWith(t *testing.T, o rig.Options) *rig.Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // a cold cache is filled first
	defer cancel()
	i, err := rig.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := rig.Clean(context.Background(), progress{t}, o.Name); err != nil {
			t.Error(err)
		}
	})
	return i
}

func gone(t *testing.T, i *rig.Instance) {
	t.Helper()
	left, err := i.Leftovers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left of instance %s:\n%s", i.Name(), strings.Join(left, "\n"))
	}
}

// deploy creates a deployment of two pods, one with a host port, and returns
// their container ids once they are Ready.
func deploy(t *testing.T, i *rig.Instance, hostPort int32) map[string]string {
	t.Helper()
	client, err := i.Client()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "probe"}
	replicas := int32(2)
	template := corev1.PodSpec{
		Containers: []corev1.Container{{Name: "probe", Image: rig.AgnhostImage, Args: []string{"netexec"}}},
	}
	_, err = client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	exposed := template.DeepCopy()
	exposed.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: hostPort}}
	_, err = client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "exposed", Labels: labels}, Spec: *exposed,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ids map[string]string
	await(t, 2*time.Minute, "three Ready pods", func() error {
		ids, err = containers(t.Context(), i)
		if err == nil && len(ids) != 3 {
			err = fmt.Errorf("%d pods are Ready", len(ids))
		}
		return err
	})
	return ids
}

// containers returns the container id of each Ready pod.
func containers(ctx context.Context, i *rig.Instance) (map[string]string, error) {
	client, err := i.Client()
	if err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.Ready && p.Status.PodIP != "" {
				ids[p.Name] = fmt.Sprintf("%s restarts=%d", c.ContainerID, c.RestartCount)
			}
		}
	}
	return ids, nil
}

func await(t *testing.T, patience time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain for %s: %v", patience, what, err)
		}
		time.Sleep(100 * time.Millisecond) // real processes, so real time
	}
}

func TestTwoInstancesSideBySide(t *testing.T) {
	ctx := t.Context()
	a, b := up(t, "it-a", rig.AgentKubelet), up(t, "it-b", rig.AgentKubelet)
	for what, pair := range map[string][2]string{
		"folder":        {a.Dir(), b.Dir()},
		"CRI socket":    {a.RuntimeSocket(), b.RuntimeSocket()},
		"node address":  {a.NodeIP(), b.NodeIP()},
		"pods' network": {a.PodCIDR(), b.PodCIDR()},
		"registry":      {a.Registry(), b.Registry()},
		"cgroup":        {a.CgroupRoot(), b.CgroupRoot()},
	} {
		if pair[0] == pair[1] {
			t.Errorf("both instances have the %s %s", what, pair[0])
		}
	}
	if _, err := rig.Up(ctx, rig.Options{Name: "it-a", Agent: rig.AgentNone}); err == nil {
		t.Error("a second instance of the same name came up")
	}
	before, other := deploy(t, a, 18080), deploy(t, b, 18081)

	if err := a.RestartContainerd(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.StopAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	pid, err := a.AgentPID()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.KillAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	await(t, 30*time.Second, "a new agent", func() error {
		now, err := a.AgentPID()
		if err == nil && now == pid {
			err = errors.New("it is the one that was killed")
		}
		return err
	})
	if err := a.WaitNodeReady(ctx); err != nil {
		t.Fatal(err)
	}
	after, err := containers(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the containers after containerd, API server and agent were restarted (-before +after):\n%s", diff)
	}

	// The positive control: what Leftovers finds while all runs.
	left, err := a.Leftovers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"process: etcd", "process: pause", "mount: ", "cgroup: ", "bridge: ", "link: veth",
		"iptables rule: ", "iptables chain: CNI-DN-", "CNI result: ", "folder or file: "} {
		if !strings.Contains("\n"+strings.Join(left, "\n"), "\n"+kind) {
			t.Errorf("while it runs, Leftovers finds no %q", kind)
		}
	}

	// Another process attaches to it and stops it.
	again, err := rig.Open("it-a")
	if err != nil {
		t.Fatal(err)
	}
	again.SetOutput(progress{t})
	if err := again.Down(ctx); err != nil {
		t.Fatal(err)
	}
	gone(t, again)
	now, err := containers(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(other, now); diff != "" {
		t.Errorf("the other instance's containers after one was stopped (-before +after):\n%s", diff)
	}
	if err := b.Down(ctx, rig.Fast); err != nil {
		t.Fatal(err)
	}
	gone(t, b)
}

// An instance with the machine's default places gives all of them back, a crashed one too; a second one is refused
// meanwhile.
func TestDefaultPlaces(t *testing.T) {
	places := []string{"/var/lib/kubelet", "/var/log/pods", "/run/containerd/containerd.sock"}
	for _, place := range places {
		if _, err := os.Lstat(place); err == nil {
			t.Fatalf("this machine has a %s: run the test where there is no kubelet", place)
		}
	}
	for name, remove := range map[string]func(*rig.Instance) error{
		"places": func(i *rig.Instance) error { return i.Down(t.Context()) },
		"places-crash": func(i *rig.Instance) error {
			if err := os.Remove("/var/lib/microlet-rig/.instances/" + i.Name() + ".json"); err != nil {
				return err
			}
			_, err := rig.Clean(t.Context(), progress{t}, i.Name())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			options := rig.Options{Name: name, Agent: rig.AgentKubelet, DefaultPlaces: true, Out: progress{t}}
			i := upWith(t, options)
			deploy(t, i, 18080)
			for _, place := range places {
				if _, err := os.Stat(place); err != nil {
					t.Error(err)
				}
			}
			options.Name = "places-second"
			if second, err := rig.Up(t.Context(), options); err == nil ||
				!strings.Contains(err.Error(), "another instance") {
				t.Errorf("a second instance with the same places: %v, %v", second, err)
			}
			if err := remove(i); err != nil {
				t.Fatal(err)
			}
			gone(t, i)
			for _, place := range append(places, "/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/memory/kubepods") {
				if _, err := os.Lstat(place); err == nil {
					t.Errorf("%s is left", place)
				}
			}
		})
	}
}

// A node without a control plane runs a pod, and runs it on when it joins one.
func TestANodeJoins(t *testing.T) {
	manifests := t.TempDir()
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: alone}\n" +
		"spec: {containers: [{name: alone, image: '" + rig.BusyboxImage + "', command: [sleep, infinity]}]}\n"
	if err := os.WriteFile(filepath.Join(manifests, "alone.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	options := rig.Options{Name: "joins", Agent: rig.AgentKubelet, Standalone: true, Out: progress{t},
		AgentArgs: []string{"--pod-manifest-path=" + manifests}}
	i := upWith(t, options)
	for _, program := range []string{rig.Etcd, rig.APIServer} {
		if _, err := os.Stat(i.Log(program)); err == nil {
			t.Errorf("%s was started for a standalone node", program)
		}
	}
	before := running(t, i, "alone")
	for end := time.Now().Add(2 * time.Minute); before == ""; before = running(t, i, "alone") {
		if time.Now().After(end) {
			t.Fatal("the standalone node does not run its pod within 2 minutes")
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := i.Join(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	deploy(t, i, 18081)
	if after := running(t, i, "alone"); after != before {
		t.Errorf("the pod's container was %s, and is %q after the node has joined", before, after)
	}
	client, err := i.Client()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").Get(t.Context(), "alone-"+i.NodeName(), metav1.GetOptions{}); err != nil {
		t.Errorf("the cluster does not show the node's pod: %v", err)
	}
	if err := i.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone(t, i)
}

// running returns the identifier of a running container of that name, or "".
func running(t *testing.T, i *rig.Instance, name string) string {
	t.Helper()
	conn, err := i.DialRuntime()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	list, err := runtimeapi.NewRuntimeServiceClient(conn).ListContainers(t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{"io.kubernetes.container.name": name},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.GetContainers()) == 0 {
		return ""
	}
	return list.GetContainers()[0].GetId()
}

func TestCleanAfterACrash(t *testing.T) {
	i := up(t, "it-crash", rig.AgentKubelet)
	deploy(t, i, 18082)
	// All programs and shims die at once, containers live on, and the record
	// of what was started is lost.
	pids := 0
	for _, s := range i.Status(t.Context()) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", s.PID))
		if err != nil || !strings.Contains(string(text), i.CgroupRoot()+"/rig/"+s.Program) {
			t.Fatalf("%s is not in its cgroup: %v\n%s", s.Program, err, text)
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		var pid int
		if n, _ := fmt.Sscan(e.Name(), &pid); n != 1 {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err == nil && strings.Contains(string(text), i.CgroupRoot()+"/rig/") {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			pids++
		}
	}
	if pids < 10 {
		t.Errorf("only %d processes were there to kill", pids)
	}
	if err := os.Remove("/var/lib/microlet-rig/.instances/it-crash.json"); err != nil {
		t.Fatal(err)
	}
	cleaned, err := rig.Clean(t.Context(), progress{t}, "it-crash")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"it-crash"}, cleaned); diff != "" {
		t.Errorf("cleaned (-want +got):\n%s", diff)
	}
	gone(t, i)
	if again, err := rig.Clean(t.Context(), progress{t}, "it-crash"); err != nil || len(again) > 0 {
		t.Errorf("a second clean took away %v, %v", again, err)
	}
}
