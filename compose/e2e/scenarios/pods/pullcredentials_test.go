//go:build long

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestPullCredentials: who may use an image that was pulled with a secret, under the kubelet and under microlet, and
// under each with the other's records.
func TestPullCredentials(t *testing.T) {
	s := scene.New(t)
	r := newPrivateRegistry(t, s)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	pulled := map[rig.Agent]string{}
	for round, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet, rig.AgentKubelet} {
		scene.Shared.SwitchTo(t, agent)
		own := r.push(s, fmt.Sprintf("round-%d", round))
		pod := func(what, image string, policy corev1.PullPolicy, secrets ...string) *corev1.Pod {
			return r.pod(fmt.Sprintf("%s-%d", what, round), image, policy, secrets...)
		}
		s.CreatePods(pod("owner", own, corev1.PullIfNotPresent, "ann"))
		s.WaitReady(scene.Patience, fmt.Sprintf("owner-%d", round))
		images := map[string]string{"own": own}
		for before, image := range pulled {
			images["of-"+string(before)] = image
		}
		for of, image := range images {
			s.CreatePods(
				pod("none-"+of, image, corev1.PullIfNotPresent),
				pod("wrong-"+of, image, corev1.PullIfNotPresent, "wrong"),
				pod("never-"+of, image, corev1.PullNever),
				pod("friend-"+of, image, corev1.PullNever, "copy"),
			)
			s.WaitReady(scene.Patience, fmt.Sprintf("friend-%s-%d", of, round))
			for _, what := range []string{"none", "wrong"} {
				s.Wait(scene.Patience, what+" to be refused", waits(s, fmt.Sprintf("%s-%s-%d", what, of, round),
					"ErrImagePull", "ImagePullBackOff"))
			}
			s.Wait(scene.Patience, "the image not to be there", waits(s, fmt.Sprintf("never-%s-%d", of, round),
				"ErrImageNeverPull"))
		}
		pulled[agent] = own
		t.Logf("%s: images %v are for those who have their credentials", agent, images)
	}
}

// TestCredentialPlugins: the node's plugins have the credentials, one of them only for pods with a service account. One
// that hangs holds up its own pod only, and ends with it.
func TestCredentialPlugins(t *testing.T) {
	s := scene.New(t)
	r := newPrivateRegistry(t, s)
	allowAudience(t, s)
	config, bin := r.plugins(t)
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	for _, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		scene.Shared.SwitchTo(t, agent, "--image-credential-provider-config="+config,
			"--image-credential-provider-bin-dir="+bin)
		repository := func(of string) string { return of + "/" + string(agent) }
		plain := r.pod("plain-"+string(agent), r.push(s, repository("plain")), corev1.PullAlways)
		named := r.pod("named-"+string(agent), r.push(s, repository("tokens")), corev1.PullAlways)
		named.Spec.ServiceAccountName = "puller"
		other := r.pod("other-"+string(agent), named.Spec.Containers[0].Image, corev1.PullIfNotPresent)
		other.Spec.ServiceAccountName = "default"
		hangs := r.pod("hangs-"+string(agent), r.push(s, repository("hangs")), corev1.PullAlways)
		s.CreatePods(hangs)
		s.CreatePods(plain, named)
		s.WaitReady(scene.Patience, plain.Name, named.Name)
		s.CreatePods(other)
		s.Wait(scene.Patience, "an account without the annotation to be refused", waits(s, other.Name, "ErrImagePull",
			"ImagePullBackOff"))
		pid := r.hanging(t)
		s.DeletePods(hangs.Name)
		s.Wait(scene.Patience, "the end of the pod whose plugin hangs", s.AreGone(hangs.Name))
		if agent == rig.AgentKubelet {
			continue // it leaves the plugin its minute
		}
		scene.Await(t, scene.Patience, "the end of the plugin that hangs", func() error {
			if _, err := os.Stat("/proc/" + pid); err == nil {
				return fmt.Errorf("process %s is there", pid)
			}
			return nil
		})
	}
}

// waits says whether the pod's container waits for one of the reasons.
func waits(s *scene.Scene, pod string, reasons ...string) func(record.View) error {
	return func(v record.View) error {
		var seen []string
		for _, c := range s.ContainerStatuses(v, pod) {
			if c.State.Waiting != nil && slices.Contains(reasons, c.State.Waiting.Reason) {
				return nil
			}
			seen = append(seen, fmt.Sprintf("container %s is in %+v", c.Name, c.State))
		}
		return fmt.Errorf("pod %s: %q", pod, seen)
	}
}

// privateRegistry asks for a password, beside the registry of the rig that does not.
type privateRegistry struct {
	host string
	dir  string
}

const password = "right"

// newPrivateRegistry also has the runtime know that it speaks HTTP, and makes the secrets of the namespace: "ann" and
// "copy" have the password, "wrong" has another.
func newPrivateRegistry(t *testing.T, s *scene.Scene) *privateRegistry {
	t.Helper()
	r := &privateRegistry{dir: t.TempDir()}
	r.host = s.RunRegistry(func(w http.ResponseWriter, q *http.Request, inner http.Handler) {
		if _, given, ok := q.BasicAuth(); !ok || given != password {
			w.Header().Set("Www-Authenticate", `Basic realm="private"`)
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, q)
	})
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []struct{ name, password string }{{"ann", password}, {"copy", password}, {"wrong", "guess"}} {
		data, err := json.Marshal(map[string]any{"auths": map[string]any{
			r.host: map[string]string{"username": "ann", "password": secret.password},
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Secrets(s.Namespace).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: secret.name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// push makes an image that no other test has, and returns its name.
func (r *privateRegistry) push(s *scene.Scene, repository string) string {
	s.T.Helper()
	return s.PushImage(r.host, repository, 1<<10, remote.WithAuth(&authn.Basic{Username: "ann", Password: password}))
}

func (r *privateRegistry) pod(name, image string, policy corev1.PullPolicy, secrets ...string) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
	for _, secret := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	return p
}

// plugins are: "plain" has the password, "tokens" has it for callers with a token, and "hangs" writes where it hangs.
func (r *privateRegistry) plugins(t *testing.T) (config, bin string) {
	t.Helper()
	answer := `printf '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse",` +
		`"cacheKeyType":"Image","auth":{"` + r.host + `":{"username":"%s","password":"` + password + `"}}}' `
	scripts := map[string]string{
		"plain":  "cat > /dev/null; " + answer + "plain",
		"tokens": `grep -q '"serviceAccountToken":"ey.*"example/pulls":"yes"' && ` + answer + "tokens",
		"hangs":  "echo $$ > " + filepath.Join(r.dir, "pid") + "; sleep 100000 & wait",
	}
	list := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		list += "- name: " + name + "\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  defaultCacheDuration: 0s\n" +
			"  matchImages: [\"" + r.host + "/" + name + "\"]\n"
		if name == "tokens" {
			list += "  tokenAttributes:\n    serviceAccountTokenAudience: private\n    cacheType: ServiceAccount\n" +
				"    requireServiceAccount: true\n    requiredServiceAccountAnnotationKeys: [example/pulls]\n"
		}
	}
	config = filepath.Join(r.dir, "providers.yaml")
	if err := os.WriteFile(config, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	return config, r.dir
}

// hanging is the process of the plugin that hangs.
func (r *privateRegistry) hanging(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// allowAudience makes the service account "puller", and lets nodes request tokens for the registry.
func allowAudience(t *testing.T, s *scene.Scene) {
	t.Helper()
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().ServiceAccounts(s.Namespace).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "puller", Annotations: map[string]string{"example/pulls": "yes"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "private-"},
		Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""}, Resources: []string{"private"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "private-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = client.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{})
		_ = client.RbacV1().ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{})
	})
}
