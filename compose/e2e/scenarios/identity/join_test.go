//go:build long

package identity

import (
	"context"
	"os"
	"path/filepath"
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

// TestTheKubeletGoesOn: the kubelet takes the certificate that microlet requested and the controller manager signed,
// and microlet takes it back.
func TestTheKubeletGoesOn(t *testing.T) {
	s := scene.New(t)
	j := newJoin(t, s)
	j.bind(t, "system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	j.start(t)
	pair, err := os.Readlink(filepath.Join(j.pki, "kubelet-client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(j.bootstrap); err != nil { // it is no longer needed
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
	s                     *scene.Scene
	kubeconfig, bootstrap string
	pki                   string
}

func newJoin(t *testing.T, s *scene.Scene) *join {
	t.Helper()
	dir := t.TempDir()
	if s.OnMachine() {
		dir = "/var/lib/" + s.Namespace
	}
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	j := &join{
		client: client, s: s, user: "system:serviceaccount:" + s.Namespace + ":joins",
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
	if err := clientcmdapi.FlattenConfig(config); err != nil { // another machine has no file of the CA there
		t.Fatal(err)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(j.bootstrap, text); err != nil {
		t.Fatal(err)
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
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: j.s.Namespace, Name: "joins"}},
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

// start starts microlet with these arguments besides j's, until the test ends.
func (j *join) start(t *testing.T, more ...string) {
	t.Helper()
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, append(j.args(), more...)...)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
}

// args are an agent's. Of a flag that is given twice, the last one counts.
func (j *join) args() []string {
	return []string{
		"--kubeconfig=" + j.kubeconfig, "--bootstrap-kubeconfig=" + j.bootstrap, "--cert-dir=" + j.pki,
		"--rotate-certificates",
	}
}
