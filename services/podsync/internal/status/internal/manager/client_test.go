package manager

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

func TestClient(t *testing.T) {
	p := testPod("a")
	set := fake.NewClientset(p)
	c := NewClient(set)
	s := runs(p)
	patch, err := statusPatch(p.UID, &p.Status, merged(p, &s))
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.PatchPodStatus(t.Context(), p.Namespace, p.Name, patch)
	if err != nil || after.Status.PodIP != "10.0.0.2" {
		t.Fatalf("patched pod %+v, error %v", after, err)
	}
	if got, err := c.GetPod(t.Context(), p.Namespace, p.Name); err != nil || got.Status.PodIP != "10.0.0.2" {
		t.Errorf("pod %+v, error %v", got, err)
	}
	first := set.Actions()[0].(clienttesting.PatchAction)
	if first.GetSubresource() != "status" || first.GetPatchType() != types.StrategicMergePatchType {
		t.Errorf("patch of %q as %s", first.GetSubresource(), first.GetPatchType())
	}
}

// TestAnswersToADeletion: only the API server's says that the pod is deleted, whatever its status code is.
func TestAnswersToADeletion(t *testing.T) {
	const pod, page = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"%s","uid":"%s"}}`, "<html>OK</html>"
	const status = `{"kind":"Status","apiVersion":"v1","status":"%s","details":{"name":"%s","kind":"%s","uid":"%s"}}`
	for name, test := range map[string]struct {
		contentType, body string
		deleted           bool
	}{
		"the pod":                   {"application/json", fmt.Sprintf(pod, "a", "u1"), true},
		"success":                   {"application/json", fmt.Sprintf(status, "Success", "a", "pods", "u1"), true},
		"success, and no UID":       {"application/json", fmt.Sprintf(status, "Success", "a", "Pod", ""), true},
		"another pod":               {"application/json", fmt.Sprintf(pod, "b", "u1"), false},
		"a pod of the same name":    {"application/json", fmt.Sprintf(pod, "a", "u2"), false},
		"a failure":                 {"application/json", fmt.Sprintf(status, "Failure", "a", "pods", "u1"), false},
		"success of something else": {"application/json", fmt.Sprintf(status, "Success", "a", "nodes", ""), false},
		"success of nothing":        {"application/json", `{"kind":"Status","apiVersion":"v1","status":"Success"}`, false},
		"a list":                    {"application/json", `{"kind":"PodList","apiVersion":"v1"}`, false},
		"some JSON":                 {"application/json", `{"ok":true}`, false},
		"a page":                    {"text/html", page, false},
		"a page that says JSON":     {"application/json", page, false},
		"nothing":                   {"", "", false},
	} {
		var asked metav1.DeleteOptions
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Method != http.MethodDelete ||
				r.URL.Path != "/api/v1/namespaces/ns/pods/a" {
				t.Errorf("%s %s, %v", r.Method, r.URL, err)
			}
			w.Header().Set("Content-Type", test.contentType)
			_, _ = io.WriteString(w, test.body)
		}))
		set, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		if err := NewClient(set).DeletePod(t.Context(), "ns", "a", "u1"); (err == nil) != test.deleted {
			t.Errorf("%s: %v, want it to count as a deletion: %v", name, err, test.deleted)
		}
		server.Close()
		if asked.GracePeriodSeconds == nil || *asked.GracePeriodSeconds != 0 || asked.Preconditions == nil ||
			*asked.Preconditions.UID != "u1" {
			t.Errorf("asked with %+v", asked)
		}
	}
}
