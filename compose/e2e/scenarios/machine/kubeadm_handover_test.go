//go:build machine && long

package machine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// shortLives has the controller manager sign certificates for three minutes. It dates them back by five, and an agent
// renews one after 70 to 90 % of all eight: so it does after 36 s to 132 s. There are no elections of leaders: a loser
// ends, which a program on a busy machine may become, and is restarted.
const shortLives = `controllerManager:
  extraArgs: [{name: cluster-signing-duration, value: 3m}, {name: leader-elect, value: "false"}]
scheduler:
  extraArgs: [{name: leader-elect, value: "false"}]`

const (
	handovers    = 3  // to microlet, and back
	handoverPods = 10 // that each agent starts
)

// TestKubeadmHandover gives a node that kubeadm made from the kubelet to microlet and back, three times. On it are 20
// probed pods, half of them started by each agent, and the control plane's. Each agent keeps the node until the client
// certificate has been renewed. No container restarts, neither a pod nor the Node is ever unready, and the API server
// authenticates each caller. The one exception is a kubelet that starts: see startsAgain.
func TestKubeadmHandover(t *testing.T) {
	k := newKubeadmMachine(t, "handover")
	k.init("addon", shortLives) // the network needs no pods here
	api := k.client()
	awaitNode(t, api, k.NodeName(), microletProgram, controlPlane...)
	k.bootstraps()
	r := k.record()
	k.createPods(api, r, microletProgram)
	k.gives(api, kubeletProgram)
	k.createPods(api, r, kubeletProgram)

	w := k.newWatch(api, r)
	for range handovers {
		for _, program := range []string{microletProgram, kubeletProgram} {
			w.handsOver(program)
			w.judge(program)
		}
	}
}

// bootstraps has the agent request a client certificate, with a token of kubeadm's, in place of the one that kubeadm
// made for a year.
func (k *kubeadmMachine) bootstraps() {
	k.t.Helper()
	config, err := clientcmd.Load([]byte(k.run("cat", "/etc/kubernetes/admin.conf")))
	if err != nil {
		k.t.Fatal(err)
	}
	token := k.kubeadm("token", "create")
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		k.t.Fatal(err)
	}
	const file = "/etc/kubernetes/bootstrap-kubelet.conf"
	if err := k.Write(k.t.Context(), file, text, 0o600); err != nil {
		k.t.Fatal(err)
	}
	k.run("sh", "-c", "systemctl stop kubelet.service && "+
		"rm /etc/kubernetes/kubelet.conf "+pki+"/kubelet-client-* && systemctl start kubelet.service")
	k.run("sh", "-c", "until test -e "+currentPair+"; do sleep 1; done; rm "+file)
	k.certificateIsRenewed()
}

const (
	pki         = "/var/lib/kubelet/pki"
	currentPair = pki + "/kubelet-client-current.pem"
)

// record records every change from now on. It reads from etcd, with the API server's certificate.
func (k *kubeadmMachine) record() *record.Recorder {
	k.t.Helper()
	const dir = "/etc/kubernetes/pki/"
	file := func(name string) []byte { return []byte(k.run("cat", dir+name)) }
	pair, err := tls.X509KeyPair(file("apiserver-etcd-client.crt"), file("apiserver-etcd-client.key"))
	if err != nil {
		k.t.Fatal(err)
	}
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(file("etcd/ca.crt")) {
		k.t.Fatal("etcd's CA has no certificate")
	}
	r, err := record.Start(k.t.Context(), record.Options{
		Address: net.JoinHostPort(k.NodeIP(), "2379"), Node: k.NodeName(),
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: ca},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			k.t.Error(err)
		}
	})
	return r
}

// createPods creates pods under the present agent, and waits until they are ready, and old enough for the kubelet: one
// that starts has containers that began within the 10 s before it not Ready until they were probed.
func (k *kubeadmMachine) createPods(api kubernetes.Interface, r *record.Recorder, by string) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*scene.Patience)
	defer cancel()
	var names []string
	for i := range handoverPods {
		p := probedPod(fmt.Sprintf("%s-%d", strings.TrimSuffix(by, ".real"), i), i)
		scene.Await(k.t, scene.Patience, "the service account of pods", func() error {
			_, err := api.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, p, metav1.CreateOptions{})
			return err
		})
		names = append(names, p.Name)
	}
	begin := time.Now()
	if err := r.Wait(ctx, func(v record.View) error {
		for _, name := range names {
			p := v.Pod(metav1.NamespaceDefault, name)
			if p == nil || !record.Ready(p) {
				return fmt.Errorf("pod %s: %s", name, scene.Describe(p))
			}
			if age := time.Since(p.Status.ContainerStatuses[0].State.Running.StartedAt.Time); age < 12*time.Second {
				return fmt.Errorf("pod %s is %s old", name, age)
			}
		}
		return nil
	}); err != nil {
		k.t.Fatal(err)
	}
	k.t.Logf("%d pods are ready %s after their creation, by %s", len(names), scene.Milliseconds(time.Since(begin)), by)
}

// probedPod is asked by HTTP or TCP each second, or by a command, whether it is ready and lives. User-Mode Linux starts
// processes slowly: a command runs every 5 s only, and the server starts none for a request.
func probedPod(name string, i int) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // the control plane's taint
	c := &p.Spec.Containers[0]
	c.Image, c.Args = rig.AgnhostImage, []string{"netexec", "--http-port=8080"}
	port, period := intstr.FromInt32(8080), int32(1)
	how := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: port}}
	switch i % 5 {
	case 1, 3:
		how = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
	case 2:
		*c = scene.ShellContainer("main", "echo > /tmp/ok; "+scene.Forever)
		how, period = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/ok"}}}, 5
	}
	probe := func() *corev1.Probe {
		return &corev1.Probe{ProbeHandler: *how.DeepCopy(), PeriodSeconds: period, TimeoutSeconds: 15, FailureThreshold: 3}
	}
	c.ReadinessProbe, c.LivenessProbe = probe(), probe()
	c.LivenessProbe.InitialDelaySeconds = 60 // the server is up long before, on a busy machine too
	return p
}

// gives gives the node to the program, and waits until it has it.
func (k *kubeadmMachine) gives(api kubernetes.Interface, program string) {
	k.t.Helper()
	begin := time.Now()
	k.handOver(program)
	awaitNode(k.t, api, k.NodeName(), program, controlPlane...)
	k.t.Logf("%s has the node %s after the change", program, scene.Milliseconds(time.Since(begin)))
}

// watch is what was there when the handovers began.
type watch struct {
	*kubeadmMachine
	api     kubernetes.Interface
	record  *record.Recorder
	mark    record.Mark           // up to which all is judged
	lease   *coordinationv1.Lease // as it was then
	pods    []*corev1.Pod
	running string // containers
	refused float64
	pair    clientPair
}

func (k *kubeadmMachine) newWatch(api kubernetes.Interface, r *record.Recorder) *watch {
	k.t.Helper()
	w := &watch{kubeadmMachine: k, api: api, record: r, running: k.containers(), pair: k.clientPair()}
	w.sync()
	w.mark, w.refused = r.Mark(), w.refusals()
	v := r.View()
	w.lease, w.pods = v.Lease(), slices.Concat(v.Pods(metav1.NamespaceDefault), v.Pods(metav1.NamespaceSystem))
	if want := 2*handoverPods + len(controlPlane); len(w.pods) != want {
		k.t.Fatalf("%d pods are there, want %d", len(w.pods), want)
	}
	return w
}

// sync makes the record complete.
func (w *watch) sync() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), scene.Patience)
	defer cancel()
	if err := w.record.Sync(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// handsOver gives the node to the program, which keeps it until it has had the client certificate renewed.
func (w *watch) handsOver(program string) {
	w.t.Helper()
	w.gives(w.api, program)
	begin := time.Now()
	w.run("sh", "-c", "while test $(readlink "+currentPair+") = "+w.pair.file+"; do sleep 1; done")
	next := w.clientPair()
	if !next.NotBefore.After(w.pair.NotBefore) || next.SerialNumber.Cmp(w.pair.SerialNumber) == 0 {
		w.t.Errorf("%s: the certificate of %s is not newer than the one of %s", program, next.NotBefore, w.pair.NotBefore)
	}
	if asked := w.whoAsked(next); asked != "system:node:"+w.NodeName() {
		w.t.Errorf("%s: %q asked for the certificate", program, asked)
	}
	w.pair = next
	w.t.Logf("%s has had the client certificate renewed %s later: %s", program, scene.Milliseconds(time.Since(begin)),
		next.file)
	w.allReady()
	if now := w.containers(); now != w.running {
		w.t.Fatalf("containers before: %s; with %s: %s", w.running, program, now)
	}
}

// whoAsked is the user that requested the certificate; "" if there is none.
func (w *watch) whoAsked(pair clientPair) string {
	w.t.Helper()
	list, err := w.api.CertificatesV1().CertificateSigningRequests().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range list.Items {
		block, _ := pem.Decode(c.Status.Certificate)
		if c.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && block != nil &&
			slices.Equal(block.Bytes, pair.Raw) {
			return c.Spec.Username
		}
	}
	return ""
}

// judge judges the time since the last one, which a handover to the program began.
func (w *watch) judge(program string) {
	w.t.Helper()
	w.sync()
	all, now := w.record.Since(w.mark), time.Now()
	entries := all
	if program == kubeletProgram {
		entries = slices.DeleteFunc(slices.Clone(all), w.startsAgain)
	}
	for _, what := range slices.Concat(record.Untouched(w.pods, entries), record.NodeReady(entries)) {
		w.t.Errorf("%s: %s", program, what)
	}
	age := record.LeaseAge(w.lease, entries, now)
	if age > scene.MaxLeaseAge {
		w.t.Errorf("%s: the Lease was %s old", program, age)
	}
	if now := w.refusals(); now != w.refused {
		w.t.Errorf("%s: the API server has not known %v callers, and %v before", program, now, w.refused)
		w.refused = now
	}
	w.t.Logf("%s: %d changes, of which %d are those of a kubelet that starts; the Lease was at most %s old", program,
		len(all), len(all)-len(entries), scene.Milliseconds(age))
	w.mark += record.Mark(len(all))
	w.lease = w.record.View().Lease()
}

// startsAgain reports whether a change is what a kubelet makes of its static pods when it starts. The manifests say
// nothing of their status, so those with a startup probe are not ready until it has run. Their containers run on.
func (w *watch) startsAgain(e record.Entry) bool {
	p, ok := e.Object.(*corev1.Pod)
	if !ok || e.Deleted || p.DeletionTimestamp != nil || p.Namespace != metav1.NamespaceSystem || record.Ready(p) {
		return false
	}
	return slices.ContainsFunc(w.pods, func(before *corev1.Pod) bool {
		return before.UID == p.UID && maps.Equal(record.Containers(before), record.Containers(p))
	})
}

// allReady waits until each pod is ready.
func (w *watch) allReady() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), scene.Patience)
	defer cancel()
	if err := w.record.Wait(ctx, func(v record.View) error {
		for _, p := range w.pods {
			if now := v.Pod(p.Namespace, p.Name); now == nil || !record.Ready(now) {
				return fmt.Errorf("pod %s: %s", p.Name, scene.Describe(now))
			}
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

// refusals is how many requests with credentials that it did not accept the API server has had.
func (w *watch) refusals() (sum float64) {
	w.t.Helper()
	text, err := w.api.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	known := false
	for line := range strings.Lines(string(text)) {
		m := attempts.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		number, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			w.t.Fatalf("%q: %v", line, err)
		}
		if m[1] == "success" {
			known = true
			continue
		}
		sum += number
	}
	if !known {
		w.t.Fatal("the API server counts no authenticated requests")
	}
	return sum
}

var attempts = regexp.MustCompile(`^authentication_attempts\{result="(\w+)"\} (\S+)\n$`)

// clientPair is the node's client certificate with its key, as a kubelet keeps them.
type clientPair struct {
	file string
	*x509.Certificate
}

var pairName = regexp.MustCompile(`^kubelet-client-\d{4}(-\d\d){5}\.pem$`)

// clientPair reads the pair, which has to be in the kubelet's place and form.
func (k *kubeadmMachine) clientPair() clientPair {
	k.t.Helper()
	file := k.run("readlink", currentPair)
	if path.Dir(file) != pki || !pairName.MatchString(path.Base(file)) {
		k.t.Fatalf("the link of the client certificate leads to %s", file)
	}
	if mode := k.run("stat", "-c", "%a %U %F", file); mode != "600 root regular file" {
		k.t.Errorf("%s is %s", file, mode)
	}
	text := []byte(k.run("cat", file))
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		k.t.Fatalf("%s: %v", file, err)
	}
	subject := pair.Leaf.Subject
	if user := "system:node:" + k.NodeName(); subject.CommonName != user ||
		!slices.Equal(subject.Organization, []string{"system:nodes"}) {
		k.t.Errorf("the client certificate is of %s", subject)
	}
	return clientPair{file: file, Certificate: pair.Leaf}
}
