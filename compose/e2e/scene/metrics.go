package scene

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cadvisorSocket is where the kubelet's cAdvisor looks for containerd. No flag changes it.
const cadvisorSocket = "/run/containerd/containerd.sock"

// LinkForCadvisor shows the kubelet's cAdvisor the runtime of this rig, until the test ends.
func (n *Node) LinkForCadvisor(t *testing.T) {
	t.Helper()
	n.EnsureUp(t)
	dir := filepath.Dir(cadvisorSocket)
	made := os.Mkdir(dir, 0o711) == nil
	if err := os.Symlink(n.RuntimeSocket(), cadvisorSocket); err != nil {
		t.Fatalf("a containerd of this machine, or another rig, is in the way: %v", err)
	}
	t.Cleanup(func() {
		err := os.Remove(cadvisorSocket)
		if made {
			err = errors.Join(err, os.Remove(dir))
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// MetricsReader reads figures of the node at its port, with the token of a service account.
type MetricsReader struct {
	*http.Client
	base, token string
}

// MetricsReader returns one who may read metrics and the summary.
func (s *Scene) MetricsReader() *MetricsReader {
	s.T.Helper()
	r := &MetricsReader{
		Client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
		base:   "https://" + net.JoinHostPort(s.NodeIP(), "10250"),
		token:  s.TokenForMetrics(s.T, "nodes/metrics", "nodes/stats"),
	}
	s.T.Cleanup(r.CloseIdleConnections)
	return r
}

// Get reads a page. An answer of another code than 200 is an error with its text.
func (r *MetricsReader) Get(ctx context.Context, path string) (http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+r.token)
	answer, err := r.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, strings.TrimSpace(string(body)))
	}
	return answer.Header, body, err
}

// TokenForMetrics makes a service account that may read these of nodes, and returns its token.
func (s *Scene) TokenForMetrics(t *testing.T, resources ...string) string {
	t.Helper()
	ctx, name := t.Context(), "reader-"+s.Namespace
	meta := metav1.ObjectMeta{Name: name}
	if _, err := s.API.CoreV1().ServiceAccounts(s.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""},
			Resources: resources,
			Verbs:     []string{"get"},
		}},
	}
	if _, err := s.API.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.Namespace, Name: name}},
	}
	if _, err := s.API.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := s.API.CoreV1().ServiceAccounts(s.Namespace).
		CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// ProbeTotal is how many probes of pods of a namespace, or of all if it is empty, the agent has run, by its own word.
func (n *Node) ProbeTotal(t *testing.T, namespace string) float64 {
	t.Helper()
	path := "/api/v1/nodes/" + n.NodeName() + "/proxy/metrics/probes"
	text, err := n.API.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "prober_probe_total{") ||
			namespace != "" && !strings.Contains(line, fmt.Sprintf("namespace=%q", namespace)) {
			continue
		}
		count, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		total += count
	}
	if total == 0 {
		t.Fatalf("%s shows no probe", path)
	}
	return total
}

// AwaitSlowly waits for something that only the API shows.
func (s *Scene) AwaitSlowly(limit time.Duration, what string, check func() error) {
	s.T.Helper()
	Await(s.T, limit, what, func() error {
		err := check()
		if err != nil {
			time.Sleep(time.Second)
		}
		return err
	})
}
