package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// truth is testdata/kubelet.json: what the kubelet itself makes of the manifests, see
// compose/tools/kubeletfacts/manifests.
type truth struct {
	Manifests map[string]struct {
		Pod   *v1.Pod
		Error string
	}
	Filled json.RawMessage
	Hash   string
}

func kubelet(t testing.TB) truth {
	t.Helper()
	data, err := os.ReadFile("testdata/kubelet.json")
	if err != nil {
		t.Fatal(err)
	}
	var facts truth
	if err := json.Unmarshal(data, &facts); err != nil {
		t.Fatal(err)
	}
	return facts
}

func origin(name string) Origin {
	return Origin{NodeName: "node-a", Path: "/tmp/kubelet-manifests/" + name}
}

// TestAsTheKubelet compares whole pods, and so defaults, UIDs, names and annotations, and what is refused.
func TestAsTheKubelet(t *testing.T) {
	facts := kubelet(t)
	files, err := os.ReadDir("testdata/manifests")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(facts.Manifests) {
		t.Fatalf("%d manifests and the kubelet was asked of %d: run compose/tools/kubeletfacts/manifests", len(files),
			len(facts.Manifests))
	}
	for name, want := range facts.Manifests {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata/manifests", name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Parse(data, origin(name))
			if (err != nil) != (want.Error != "") {
				t.Fatalf("error is %v, the kubelet's %q", err, want.Error)
			}
			if err != nil {
				if where, _, ok := strings.Cut(strings.TrimPrefix(want.Error, "invalid pod: ["), ": "); ok &&
					strings.HasPrefix(where, "spec.") && !strings.Contains(err.Error(), parent(where)) {
					t.Errorf("error is %v, and the kubelet blames %s", err, where)
				}
				return
			}
			got = Annotate(got, "file", "")
			delete(got.Annotations, SeenAnnotation)
			a, err := json.MarshalIndent(want.Pod, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.MarshalIndent(got, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(a), string(b)); diff != "" {
				t.Errorf("pod (-kubelet +ours)\n%s", diff)
			}
		})
	}
}

// TestHashOfEveryField: each type that a pod is made of is in this pod, so any manifest's hash is as the kubelet's.
func TestHashOfEveryField(t *testing.T) {
	facts := kubelet(t)
	var text bytes.Buffer // as it was hashed: one field holds JSON as it is written
	if err := json.Compact(&text, facts.Filled); err != nil {
		t.Fatal(err)
	}
	obj, err := decode(text.Bytes(), Origin{})
	if err != nil {
		t.Fatal(err)
	}
	p := obj.(*v1.Pod)
	p.Kind, p.APIVersion = "", ""
	SetDefaults(p)
	if got := string(uid(p, origin("filled"))); got != facts.Hash {
		t.Errorf("hash is %s, the kubelet's %s", got, facts.Hash)
	}
}

func TestLists(t *testing.T) {
	pods, err := ParseAll([]byte(`{"apiVersion":"v1","kind":"PodList","items":[
		{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}},
		{"metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`),
		Origin{NodeName: "n", URL: "http://x"})
	if err != nil || len(pods) != 2 || pods[1].Name != "b-n" || pods[0].UID == pods[1].UID {
		t.Fatalf("%v, %v", pods, err)
	}
	if len(pods[0].Spec.Tolerations) != 0 {
		t.Errorf("a pod of a URL tolerates %v", pods[0].Spec.Tolerations)
	}
	if _, err := ParseAll([]byte(`{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{}}]}`),
		Origin{NodeName: "n"}); err == nil || !strings.Contains(err.Error(), "items[0]") {
		t.Errorf("a list with a broken pod: %v", err)
	}
}

func TestStrictNamesTheField(t *testing.T) {
	data := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {restartPolice: Never, containers: [{name: c, " +
		"image: i}]}\n")
	if _, err := Parse(data, Origin{NodeName: "n", Strict: true}); err == nil ||
		!strings.Contains(err.Error(), `"spec.restartPolice"`) {
		t.Errorf("error is %v", err)
	}
}

func TestTooLong(t *testing.T) {
	if _, err := Read(bytes.NewReader(make([]byte, MaxBytes+1))); err == nil {
		t.Error("read more than the limit")
	}
	if data, err := Read(bytes.NewReader(make([]byte, MaxBytes))); err != nil || len(data) != MaxBytes {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/manifests/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, from := range []Origin{origin("x"), {NodeName: "n", URL: "u", Strict: true}} {
			pods, err := ParseAll(data, from)
			if err != nil {
				continue
			}
			for _, p := range pods {
				if p.Name == "" || p.UID == "" || p.Namespace == "" || p.Spec.NodeName == "" ||
					len(p.Spec.Containers) == 0 {
					t.Fatalf("a pod without an identity: %v", p)
				}
				if errs := validate(p, false); len(errs) > 0 {
					t.Fatalf("accepted %v", errs)
				}
			}
		}
	})
}

// parent is the field that holds another: which of two that exclude each other is blamed does not matter.
func parent(path string) string {
	if i := strings.LastIndexByte(path, '.'); i > len("spec.") {
		return path[:i]
	}
	return path
}
