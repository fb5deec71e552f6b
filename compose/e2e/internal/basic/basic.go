package basic

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
)

// Run is the scenario: a real scheduler places a Deployment on the node, its pods run with what a pod is given, and
// nothing is left when it is deleted.
func Run(t *testing.T) {
	s := scene.New(t)
	if n := s.Record.View().Node(); n == nil || !record.NodeIsReady(n) {
		t.Fatal("the node is not Ready")
	}
	replicas := int32(2)
	labels := map[string]string{"app": "basic"}
	template := scene.ScriptPod("x", `env; echo ==hosts; cat /etc/hosts; echo ==resolv; cat /etc/resolv.conf
echo ==account
d=/var/run/secrets/kubernetes.io/serviceaccount; ls $d; cat $d/namespace; echo; wc -c <$d/token; head -1 $d/ca.crt
echo ==args $(hostname); echo ==end; `+scene.Forever).Spec
	template.HostAliases = []corev1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"alias.example"}}}
	template.Containers[0].Env = []corev1.EnvVar{
		{Name: "PLAIN", Value: "value"}, {Name: "EXPANDED", Value: "<$(PLAIN)>"},
		{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "POD_NAME",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
	mark := s.Record.Mark()
	_, err := s.API.AppsV1().Deployments(s.Namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "basic"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Wait(scene.Patience, "two Ready pods", func(v record.View) error {
		ready := 0
		var state []string
		for _, p := range v.Pods(s.Namespace) {
			state = append(state, scene.Describe(p))
			if record.Ready(p) {
				ready++
			}
		}
		if ready != 2 {
			return fmt.Errorf("%d are Ready: %s", ready, strings.Join(state, "; "))
		}
		return nil
	})
	pods := s.Record.View().Pods(s.Namespace)
	for _, p := range pods {
		checkRunning(t, s, p)
		checkInside(t, s, p)
	}
	for _, times := range record.PodTimes(s.Record.Since(mark)) {
		if !times.Ready.IsZero() {
			t.Logf("created to Ready: %s", scene.Milliseconds(times.Ready.Sub(times.Created)))
		}
	}
	s.LeavesTraces(pods)
	if err := s.API.AppsV1().Deployments(s.Namespace).Delete(t.Context(), "basic", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Wait(scene.Patience, "the pods' end", func(v record.View) error { return scene.NoPods(v, s.Namespace) })
	s.LeavesNothing(pods)
}

// checkRunning judges what the API shows of a Running pod.
func checkRunning(t *testing.T, s *scene.Scene, p *corev1.Pod) {
	t.Helper()
	if p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != s.NodeName() {
		t.Errorf("%s: phase %s on node %q", p.Name, p.Status.Phase, p.Spec.NodeName)
	}
	network := netip.MustParsePrefix(s.PodCIDR())
	ip, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil || !network.Contains(ip) || len(p.Status.PodIPs) == 0 || p.Status.PodIPs[0].IP != p.Status.PodIP {
		t.Errorf("%s: pod IP %q, IPs %v, want one of %s", p.Name, p.Status.PodIP, p.Status.PodIPs, network)
	}
	if p.Status.HostIP != s.NodeIP() {
		t.Errorf("%s: host IP %q, want %s", p.Name, p.Status.HostIP, s.NodeIP())
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized,
		corev1.PodReadyToStartContainers, corev1.ContainersReady, corev1.PodReady} {
		if got := record.PodCondition(p, c); got != corev1.ConditionTrue {
			t.Errorf("%s: condition %s is %s", p.Name, c, got)
		}
	}
	if p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("%s: QoS class %q", p.Name, p.Status.QOSClass)
	}
	for _, c := range p.Status.ContainerStatuses {
		if !c.Ready || c.Started == nil || !*c.Started || c.State.Running == nil || c.RestartCount != 0 ||
			!strings.HasPrefix(c.ContainerID, "containerd://") || c.ImageID == "" {
			t.Errorf("%s: container status %+v", p.Name, c)
		}
	}
	s.Wait(scene.Patience, "the events of a start", func(v record.View) error {
		got := map[string]bool{}
		for _, e := range v.Events(s.Namespace, p.Name) {
			if e.Source.Component == "kubelet" && e.Source.Host == s.NodeName() {
				got[e.Reason] = true
			}
		}
		for _, reason := range []string{"Pulled", "Created", "Started"} {
			if !got[reason] {
				return fmt.Errorf("no event %s about %s, only %v", reason, p.Name, got)
			}
		}
		return nil
	})
}

// checkInside judges what the container itself saw.
func checkInside(t *testing.T, s *scene.Scene, p *corev1.Pod) {
	t.Helper()
	var text string
	scene.Await(t, scene.Patience, "the container's log", func() (err error) {
		text, err = s.ContainerLog(p, "main", 0)
		if err == nil && !strings.Contains(text, "==end") {
			err = errors.New("it has not come to its end")
		}
		return err
	})
	for _, want := range []string{
		"PLAIN=value\n", "EXPANDED=<value>\n", "POD_IP=" + p.Status.PodIP + "\n", "POD_NAME=" + p.Name + "\n",
		"KUBERNETES_SERVICE_PORT=443\n", "HOSTNAME=" + p.Name + "\n",
		p.Status.PodIP + "\t" + p.Name, "192.0.2.7\talias.example",
		"nameserver " + s.ClusterDNS(), "search " + s.Namespace + ".svc.cluster.local svc.cluster.local cluster.local",
		"ndots:5",
		"ca.crt\nnamespace\ntoken\n" + s.Namespace + "\n", "-----BEGIN CERTIFICATE-----",
		"==args " + p.Name,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s: the container does not see %q; it sees:\n%s", p.Name, want, text)
		}
	}
}
