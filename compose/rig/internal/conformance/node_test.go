package conformance

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/microlet/microlet/compose/rig/internal/images"
)

func TestForward(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, r.URL.Path+" "+string(body))
	}))
	defer server.Close()

	// The kernel chooses a port, which is free again for the forwarder.
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	from := reserved.Addr().String()
	if _, err := forward(t.Context(), from, server.Listener.Addr().String()); err == nil {
		t.Error("an address that is taken was forwarded")
	}
	if err := reserved.Close(); err != nil {
		t.Fatal(err)
	}
	end, err := forward(t.Context(), from, server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		resp, err := http.Post("http://"+from+"/a", "text/plain", strings.NewReader("b"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "/a b" {
			t.Errorf("answer %q, %v, want %q", body, err, "/a b")
		}
	}
	// A connection that stays open does not delay the end.
	idle, err := net.Dial("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()
	end()
	if _, err := net.Dial("tcp", from); err == nil {
		t.Error("it is still forwarded after the end")
	}
}

func TestForwardAllEndsWhenOneCannotBe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	// Whichever of them comes first, none is left.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{taken.Addr().String(): "127.0.0.1:1", free.Addr().String(): "127.0.0.1:1"}
	if _, err := forwardAll(t.Context(), addresses); err == nil {
		t.Fatal("an address that is taken was forwarded")
	}
	if _, err := net.Dial("tcp", free.Addr().String()); err == nil {
		t.Error("one address is still forwarded")
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	end, err := forwardAll(t.Context(), addresses)
	if err != nil {
		t.Fatal(err)
	}
	end()
}

func TestForwardEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	end, err := forward(ctx, "127.0.0.1:0", "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	end()
}

func TestSignIn(t *testing.T) {
	client := fake.NewClientset()
	var asked int64
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "token" {
			return false, nil, nil
		}
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		asked = *request.Spec.ExpirationSeconds
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: "secret"}}, nil
	})
	// The second time it finds its account.
	for lifetime, want := range map[time.Duration]int64{time.Minute: 600, 3 * time.Hour: 3 * 60 * 60} {
		token, err := signIn(t.Context(), client, lifetime)
		if err != nil || token != "secret" || asked != want {
			t.Errorf("token %q for %d s, %v, want one for %d s", token, asked, err, want)
		}
	}
	binding, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), nodeSuiteUser, metav1.GetOptions{})
	if err != nil || binding.RoleRef.Name != "cluster-admin" || len(binding.Subjects) != 1 ||
		binding.Subjects[0].Name != nodeSuiteUser {
		t.Errorf("binding %v, %v", binding, err)
	}
}

func TestFindSuite(t *testing.T) {
	for _, name := range []string{"e2e", "node"} {
		if s, err := FindSuite(name, false); err != nil || s.Name != name || s.OnMachine {
			t.Errorf("suite %s is %q, %v", name, s.Name, err)
		}
	}
	names := map[string]bool{}
	for _, here := range []Suite{E2E, Node} {
		s, err := FindSuite(here.Name, true)
		if err != nil || !s.OnMachine || s.Program != here.Program || s.prefix != here.prefix {
			t.Errorf("suite %s on a machine is %+v, %v", here.Name, s, err)
		}
		names[s.Name], names[s.Instance] = true, true
	}
	if len(names) != 4 {
		t.Errorf("suites on a machine share names: %v", names)
	}
	for _, onMachine := range []bool{false, true} {
		if _, err := FindSuite("storage", onMachine); err == nil {
			t.Error("an unknown suite was found")
		}
	}
}

func TestWhatIsKnownIsNotRunTwice(t *testing.T) {
	dir := t.TempDir()
	files := Files{Reasons: filepath.Join(dir, "reasons.txt"), Skips: filepath.Join(dir, "skips.txt")}
	for path, text := range map[string]string{
		files.Reasons: "a\tnot built yet: a\n",
		files.Skips:   "b\tno disk here\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for agent, want := range map[string]Reasons{
		Kubelet:  {"b": "no disk here"},
		Microlet: {"a": "not built yet: a", "b": "no disk here"},
	} {
		got, err := files.Explained(agent)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, reasons (-want +got):\n%s", agent, err, diff)
		}
	}
	files.Skips = ""
	if got, err := files.Explained(Kubelet); err != nil || len(got) > 0 {
		t.Errorf("without files %v, %v", got, err)
	}
}

// The runtime gets the image that no pull could bring, pinned, under the name that the suite has for it.
func TestAnImageIsNamedByItsDigest(t *testing.T) {
	p := &here{folder: t.TempDir()}
	const ctr = "#!/bin/sh\necho \"$@\" >>calls\ncase \"$*\" in *registry-that-fails*) echo no; exit 2;; esac\n"
	if err := p.write(t.Context(), filepath.Join(p.dir(), "ctr"), []byte(ctr), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := nameByDigest(t.Context(), p, "/run/c.sock", "10.0.0.1:5000"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(p.dir(), "calls"))
	if err != nil {
		t.Fatal(err)
	}
	const from = "10.0.0.1:5000/e2e-test-images/busybox:stand-in"
	var want strings.Builder
	for _, call := range []string{
		"pull --local --plain-http --label=io.cri-containerd.pinned=pinned " + from,
		"tag --local --force " + from + " " + images.ByDigest,
		"remove " + from,
	} {
		want.WriteString("--address=/run/c.sock --namespace=k8s.io images " + call + "\n")
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("calls of ctr (-want +got):\n%s", diff)
	}
	err = nameByDigest(t.Context(), p, "/run/c.sock", "registry-that-fails")
	if err == nil || !strings.Contains(err.Error(), "ctr has ended with 2: no") {
		t.Errorf("error %v", err)
	}
}
