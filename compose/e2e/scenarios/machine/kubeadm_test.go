//go:build machine

package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/machine"
)

// kubeadmPatience is for kubeadm's own commands: each waits for many things, and pulls images.
const kubeadmPatience = 30 * time.Minute

// The programs of which /usr/bin/kubelet is one.
const (
	microletProgram = "microlet"
	kubeletProgram  = "kubelet.real"
)

// kubeadmMachine is a machine with a runtime, kubeadm, and the unit and drop-in of the kubelet's package, in which
// /usr/bin/kubelet is microlet. Nothing of a cluster is on it.
type kubeadmMachine struct {
	t *testing.T
	*rig.Instance
	machine.Machine
}

// newKubeadmMachine starts a machine of a rig of its own. The control plane of that rig has no part in the test, and
// takes no time of the processor from the one in the machine.
func newKubeadmMachine(t *testing.T, name string) *kubeadmMachine {
	t.Helper()
	top, err := scene.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	i, err := rig.Up(t.Context(), rig.Options{
		Name: fmt.Sprintf("%s-%d", name, os.Getpid()), Agent: rig.AgentNone, Machine: true,
		With: []string{rig.GroupKubeadm, rig.GroupKubelet}, Out: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { takeDown(t, i) })
	for _, program := range []string{rig.Scheduler, rig.ControllerManager, rig.APIServer, rig.Etcd} {
		if err := i.Kill(t.Context(), program); err != nil {
			t.Fatal(err)
		}
	}
	m, err := i.Machine()
	if err != nil {
		t.Fatal(err)
	}
	k := &kubeadmMachine{t: t, Instance: i, Machine: m}
	k.run("sh", "-c", "rm -rf /etc/kubernetes /var/lib/kubelet")
	for to, from := range map[string]string{
		"/usr/bin/" + microletProgram:                               filepath.Join(top, "bin", "microlet"),
		"/usr/bin/microlet-local":                                   filepath.Join(top, "bin", "microlet-local"),
		"/usr/bin/" + kubeletProgram:                                i.Binary("kubelet"),
		"/usr/bin/kubeadm":                                          i.Binary("kubeadm"),
		"/usr/lib/systemd/system/kubelet.service":                   "testdata/kubelet.service",
		"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "testdata/10-kubeadm.conf",
	} {
		if err := m.CopyIn(t.Context(), from, to); err != nil {
			t.Fatal(err)
		}
	}
	// CoreDNS wants a server to ask for other names. This address is reserved for documentation, and nothing answers
	// there.
	if err := m.Write(t.Context(), "/etc/resolv.conf", []byte("nameserver 192.0.2.53\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	k.run("sh", "-c", "ln -s "+microletProgram+" /usr/bin/kubelet && systemctl daemon-reload && "+
		"systemctl enable --quiet kubelet.service containerd.service")
	t.Cleanup(func() {
		if t.Failed() {
			k.explain()
		}
	})
	return k
}

func takeDown(t *testing.T, i *rig.Instance) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	err := i.Down(ctx)
	if err == nil {
		var left []string
		if left, err = i.Leftovers(ctx); err == nil && len(left) > 0 {
			err = fmt.Errorf("left of the rig after its end: %q", left)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// explain logs what the machine knows of a failure.
func (k *kubeadmMachine) explain() {
	for _, script := range []string{
		"journalctl --no-pager -o short-precise -n 150 -u kubelet.service", "systemctl status --no-pager kubelet.service",
		"ctr -n k8s.io containers list", "for f in /var/log/pods/kube-system_*/*/*.log; do echo $f; tail -n 20 $f; done",
	} {
		r, err := k.Machine.Run(context.WithoutCancel(k.t.Context()), machine.Command{Args: []string{"sh", "-c", script}})
		k.t.Logf("%s: %s%s, %v", script, r.Stdout, r.Stderr, err)
	}
}

// run runs a command that has to succeed, and returns what it writes.
func (k *kubeadmMachine) run(args ...string) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), kubeadmPatience)
	defer cancel()
	r, err := k.Machine.Run(ctx, machine.Command{Args: args})
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("it has ended with %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err != nil {
		k.t.Fatalf("%q: %v", args, err)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// kubeadm runs one of kubeadm's commands.
func (k *kubeadmMachine) kubeadm(args ...string) string {
	k.t.Helper()
	begin := time.Now()
	out := k.run(append([]string{"kubeadm"}, args...)...)
	k.t.Logf("kubeadm %s has ended after %s:\n%s", strings.Join(args, " "), scene.Milliseconds(time.Since(begin)), out)
	return out
}

// init makes a cluster of this machine, without these phases, and with these lines in the configuration of the cluster.
func (k *kubeadmMachine) init(skipPhases, cluster string) {
	k.t.Helper()
	config := fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %q}
nodeRegistration: {criSocket: "unix:///run/containerd/containerd.sock"}
skipPhases: [%s]
timeouts: {controlPlaneComponentHealthCheck: 10m, kubeletHealthCheck: 10m, kubernetesAPICall: 10m}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %s
networking: {podSubnet: %q}
%s
`, k.NodeIP(), skipPhases, strings.TrimPrefix(k.run("kubelet", "--version"), "Kubernetes "), k.PodCIDR(), cluster)
	if err := k.Write(k.t.Context(), "/root/kubeadm.yaml", []byte(config), 0o600); err != nil {
		k.t.Fatal(err)
	}
	k.kubeadm("init", "--config=/root/kubeadm.yaml")
}

// client is the administrator's.
func (k *kubeadmMachine) client() kubernetes.Interface {
	k.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(k.run("cat", "/etc/kubernetes/admin.conf")))
	if err != nil {
		k.t.Fatal(err)
	}
	config.Timeout = 30 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		k.t.Fatal(err)
	}
	return client
}

// controlPlane are the static pods that kubeadm makes of a machine.
var controlPlane = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// awaitNode waits until the node is Ready, of that program, with each static pod of the control plane ready.
func awaitNode(t *testing.T, api kubernetes.Interface, node, program string, staticPods ...string) {
	t.Helper()
	scene.Await(t, scene.Patience, node+" ready", func() error {
		n, err := api.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := n.Status.NodeInfo.KubeletVersion; strings.Contains(got, "microlet") != (program == microletProgram) {
			return fmt.Errorf("its version is %s", got)
		}
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("its conditions are %+v", n.Status.Conditions)
		}
		for _, name := range staticPods {
			pod, err := api.CoreV1().Pods(metav1.NamespaceSystem).Get(t.Context(), name+"-"+node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if err := isReady(pod); err != nil {
				return err
			}
		}
		return nil
	})
}

func isReady(pod *corev1.Pod) error {
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		return nil
	}
	return fmt.Errorf("pod %s is %s: %+v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses)
}

// containers are the IDs of all running containers of the machine, sandboxes too.
func (k *kubeadmMachine) containers() string {
	return k.run("sh", "-c", "ctr -n k8s.io tasks list -q | sort")
}

// TestKubeadm has kubeadm make a cluster of a machine on which kubelet.service starts microlet, and then join another
// machine to it.
func TestKubeadm(t *testing.T) {
	k := newKubeadmMachine(t, "init")
	k.init("", "")
	api := k.client()
	awaitNode(t, api, k.NodeName(), microletProgram, controlPlane...)
	k.certificateIsRenewed()
	awaitAddons(t, api, 1)
	k.runsPods(api, k.NodeName(), "nslookup kubernetes.default.svc.cluster.local >/dev/null")
	k.handovers(api)
	k.kubeadm("certs", "renew", "all")
	k.kubeadm("upgrade", "node")
	awaitNode(t, api, k.NodeName(), microletProgram, controlPlane...)

	worker := newKubeadmMachine(t, "join")
	worker.join(k.kubeadm("token", "create", "--print-join-command"))
	awaitNode(t, api, worker.NodeName(), microletProgram)
	worker.certificateIsRenewed()
	awaitAddons(t, api, 2)
	k.runsPods(api, worker.NodeName(), "true") // the rigs of two machines have no way from pod to pod
	worker.kubeadm("reset", "--force")
	worker.isClean()
	k.kubeadm("reset", "--force")
	k.isClean()
}

// join adds the machine to the cluster of the command, which "kubeadm token create" wrote.
func (k *kubeadmMachine) join(command string) {
	k.t.Helper()
	args, ok := strings.CutPrefix(command, "kubeadm ")
	if !ok {
		k.t.Fatalf("%q is no command to join", command)
	}
	k.kubeadm(strings.Fields(args)...)
}

// isClean: nothing of the node is left but the programs, and what a machine keeps until it restarts.
func (k *kubeadmMachine) isClean() {
	k.t.Helper()
	if state := k.run("sh", "-c", "systemctl is-active kubelet.service || true"); state != "inactive" {
		k.t.Errorf("kubelet.service is %s", state)
	}
	for _, script := range []string{
		"ctr -n k8s.io containers list -q", "pgrep -a microlet || true",
		"find /var/lib/kubelet -mindepth 1 -maxdepth 1",
		// What kubeadm has kept of an upgrade is its own.
		"find /etc/kubernetes -type f -not -path '/etc/kubernetes/tmp/*'",
		"grep ' /var/lib/kubelet' /proc/self/mounts || true",
	} {
		if left := k.run("sh", "-c", script); left != "" {
			k.t.Errorf("left after the reset, by %s:\n%s", script, left)
		}
	}
}

// certificateIsRenewed: the kubeconfig names the file that is replaced.
func (k *kubeadmMachine) certificateIsRenewed() {
	k.t.Helper()
	const file = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	if text := k.run("cat", "/etc/kubernetes/kubelet.conf"); !strings.Contains(text, "client-certificate: "+file) {
		k.t.Errorf("kubelet.conf does not name %s, whose certificate is renewed", file)
	}
	subject := k.run("openssl", "x509", "-noout", "-subject", "-in", file)
	if !strings.Contains(subject, "system:node:"+k.NodeName()) {
		k.t.Errorf("the client certificate is of %s", subject)
	}
}

// runsPods: a pod runs on the node, where the script succeeds, and ends, and the API server has the way to its logs.
func (k *kubeadmMachine) runsPods(api kubernetes.Interface, node, script string) {
	k.t.Helper()
	ctx := k.t.Context()
	pods := api.CoreV1().Pods(metav1.NamespaceDefault)
	var pod *corev1.Pod
	spec := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "job-"},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: rig.BusyboxImage,
				Command: []string{"sh", "-c", script + " && cat /var/run/secrets/*/*/namespace"},
			}},
		},
	}
	scene.Await(k.t, scene.Patience, "the service account of pods", func() (err error) {
		pod, err = pods.Create(ctx, spec, metav1.CreateOptions{})
		return err
	})
	scene.Await(k.t, scene.Patience, "a pod of "+node, func() error {
		p, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && p.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("it is %s: %+v", p.Status.Phase, p.Status.ContainerStatuses)
		}
		return err
	})
	log, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil || string(log) != metav1.NamespaceDefault {
		k.t.Errorf("the log of the pod is %q, %v", log, err)
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		k.t.Error(err)
	}
}

// handOver gives the node to that program: the unit starts it in the place of the one before.
func (k *kubeadmMachine) handOver(program string) {
	k.t.Helper()
	k.run("sh", "-c", "ln -sfn "+program+" /usr/bin/kubelet && systemctl restart kubelet.service")
}

// addonPods are the pods of kubeadm's addons on the first node: kube-proxy, and two of CoreDNS.
const addonPods = 3

// awaitAddons waits until kube-proxy runs on so many nodes, and CoreDNS on the first.
func awaitAddons(t *testing.T, api kubernetes.Interface, nodes int32) {
	t.Helper()
	apps := api.AppsV1()
	scene.Await(t, scene.Patience, "kubeadm's addons", func() error {
		proxy, err := apps.DaemonSets(metav1.NamespaceSystem).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		dns, err := apps.Deployments(metav1.NamespaceSystem).Get(t.Context(), "coredns", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if proxy.Status.NumberReady != nodes || dns.Status.ReadyReplicas != addonPods-1 {
			return fmt.Errorf("of kube-proxy %d pods are ready, of CoreDNS %d", proxy.Status.NumberReady,
				dns.Status.ReadyReplicas)
		}
		return nil
	})
}

// handovers gives the node to the kubelet and back, three times. The containers of the control plane and the addons run
// on.
func (k *kubeadmMachine) handovers(api kubernetes.Interface) {
	k.t.Helper()
	scene.Await(k.t, scene.Patience, "the containers of the control plane and the addons alone", func() error {
		if n := len(strings.Fields(k.containers())); n != 2*(len(controlPlane)+addonPods) {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	before := k.containers()
	for range 3 {
		for _, program := range []string{kubeletProgram, microletProgram} {
			k.handOver(program)
			awaitNode(k.t, api, k.NodeName(), program, controlPlane...)
			if after := k.containers(); after != before {
				k.t.Fatalf("containers before: %s; after the change to %s: %s", before, program, after)
			}
		}
	}
}
