//go:build long

package identity

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

const (
	// life is that of the short certificates.
	life = 60 * time.Second
	// renewals of them are seen.
	renewals = 3
)

// TestClientCertificate: a node without credentials joins. Its certificate of a minute is renewed again and again, one
// renewal being denied at first, and nobody notices.
func TestClientCertificate(t *testing.T) {
	s := scene.New(t)
	j := newJoin(t, s)
	g := newSigner(t, s, life)
	began := time.Now()
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, j.args()...)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(began) })
	t.Logf("the node has its certificate and a fresh Lease %s after its start", scene.Milliseconds(time.Since(began)))
	if signed, _ := g.answers(); len(signed) != 1 || signed[0] != j.user {
		t.Fatalf("%v got certificates, want %s", signed, j.user)
	}

	w := s.CreateSteadyPods()
	s.CreatePods(scene.ScriptPod("talks", "while true; do echo word; sleep 1; done"))
	s.WaitReady(scene.Patience, "talks")
	// The controller manager approves what a node asks for itself, and signs it for a year.
	manager := s.ProgramPID(rig.ControllerManager)
	if err := s.SignalPIDs(syscall.SIGSTOP, manager); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.SignalPIDs(syscall.SIGCONT, manager); err != nil {
			t.Error(err)
		}
	})
	logs := follow(t, s, "talks")
	refused := refusals(t, j.client)
	for n := 2; n <= 1+renewals; n++ {
		if n == 3 {
			g.denyNext(1)
		}
		scene.Await(t, 2*life, "a renewal", func() error {
			if signed, _ := g.answers(); len(signed) < n {
				return fmt.Errorf("%d certificates", len(signed))
			}
			return nil
		})
	}
	time.Sleep(life / 3) // the one before has ended
	signed, denied := g.answers()
	for _, who := range signed[1:] {
		if who != "system:node:"+s.NodeName() {
			t.Errorf("%s asked for a renewal", who)
		}
	}
	if denied != 1 {
		t.Errorf("%d requests were denied", denied)
	}
	w.Untouched()
	w.NodeReady()
	if err := s.LeaseRenewedSince(time.Now().Add(-life / 3)); err != nil {
		t.Error(err)
	}
	before := logs.lines.Load()
	time.Sleep(3 * time.Second)
	if err := logs.ended(); err != nil || logs.lines.Load() == before {
		t.Errorf("kubectl logs -f ended after %d lines: %v", before, err)
	}
	if more := refusals(t, j.client) - refused; more != 0 {
		t.Errorf("the API server refused %v requests as unauthorized", more)
	}
	t.Logf("%d certificates, %d lines of a log, no request refused", len(signed), logs.lines.Load())
}

// TestTheKubeletGoesOn: the kubelet takes the certificate that microlet requested and the controller manager signed,
// and microlet takes it back.
func TestTheKubeletGoesOn(t *testing.T) {
	s := scene.New(t)
	j := newJoin(t, s)
	j.bind(t, "system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, j.args()...)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	pair, err := os.Readlink(filepath.Join(j.pki, "kubelet-client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(j.bootstrap); err != nil { // nobody needs it any more
		t.Fatal(err)
	}
	w := s.CreateSteadyPods()
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		began := time.Now()
		scene.Shared.SwitchTo(t, agent, j.args()...)
		scene.Await(t, scene.Patience, "a fresh Lease", func() error { return s.LeaseRenewedSince(began) })
		if now, err := os.Readlink(filepath.Join(j.pki, "kubelet-client-current.pem")); err != nil || now != pair {
			t.Errorf("%s: the certificate is %s, %v, want %s", agent, now, err, pair)
		}
	}
	w.Untouched()
}

// join is a node without credentials that may request them.
type join struct {
	client                kubernetes.Interface
	user                  string
	name                  string
	kubeconfig, bootstrap string
	pki                   string
}

func newJoin(t *testing.T, s *scene.Scene) *join {
	t.Helper()
	dir := t.TempDir()
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	j := &join{
		client: client, name: s.Namespace, user: "system:serviceaccount:" + s.Namespace + ":joins",
		kubeconfig: filepath.Join(dir, "kubelet.conf"), bootstrap: filepath.Join(dir, "bootstrap-kubelet.conf"),
		pki: filepath.Join(dir, "pki"),
	}
	accounts := client.CoreV1().ServiceAccounts(s.Namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "joins"}}
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	j.bind(t, "system:node-bootstrapper")
	token, err := accounts.CreateToken(t.Context(), "joins", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(s.NodeKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	if err := clientcmd.WriteToFile(*config, j.bootstrap); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(j.kubeconfig); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the kubeconfig is there: %v", err)
	}
	return j
}

// bind gives the account a role until the test ends.
func (j *join) bind(t *testing.T, clusterRole string) {
	t.Helper()
	bindings := j.client.RbacV1().ClusterRoleBindings()
	made, err := bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "joins-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: j.name, Name: "joins"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := bindings.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// args are an agent's. Of a flag that is given twice, the last one counts.
func (j *join) args() []string {
	return []string{
		"--kubeconfig=" + j.kubeconfig, "--bootstrap-kubeconfig=" + j.bootstrap, "--cert-dir=" + j.pki,
		"--rotate-certificates",
	}
}

// following is a kubectl logs -f.
type following struct {
	lines atomic.Int64
	done  chan struct{}
	err   error
}

func follow(t *testing.T, s *scene.Scene, pod string) *following {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.Kubectl(), "--kubeconfig="+s.Kubeconfig(), "--namespace="+s.Namespace,
		"logs", "-f", pod)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &following{done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			f.lines.Add(1)
		}
		f.err = cmd.Wait()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-f.done })
	return f
}

// ended is an error if it has ended, whatever it says of itself.
func (f *following) ended() error {
	select {
	case <-f.done:
		return fmt.Errorf("it ended: %w", errors.Join(f.err, errors.New("before it was told to")))
	default:
		return nil
	}
}

var unauthorized = regexp.MustCompile(`(?m)^apiserver_request_total\{.*code="401".*\} (\S+)$`)

// refusals are how many requests the API server has answered with 401.
func refusals(t *testing.T, client kubernetes.Interface) (all float64) {
	t.Helper()
	text, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range unauthorized.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		all += n
	}
	return all
}
