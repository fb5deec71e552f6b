package trustbundle

import (
	"context"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// anchors are certificates as PEM. The test does not look into them.
func anchors(names ...string) string {
	var text string
	for _, name := range names {
		text += "between\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(name)}))
	}
	return text
}

func bundle(name, signer, zone string, certificates ...string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: anchors(certificates...)},
	}
}

// names are what the text contains, sorted.
func names(t *testing.T, text []byte) string {
	t.Helper()
	var all []string
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			t.Errorf("there is a %s", block.Type)
		}
		all = append(all, string(block.Bytes))
	}
	if strings.Contains(string(text), "between") {
		t.Errorf("what is between the certificates is there:\n%s", text)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// woken are the pods that were woken since they were asked for last.
type woken struct {
	mu   sync.Mutex
	pods []string
}

func (w *woken) add(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods = append(w.pods, string(pod))
}

func (w *woken) take() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.pods)
	all := strings.Join(slices.Compact(w.pods), " ")
	w.pods = nil
	return all
}

func run(t *testing.T, client *fake.Clientset) (*Bundles, *woken) {
	t.Helper()
	w := &woken{}
	b, err := New(client, w.add)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b, w
}

func byName(name string) *v1.ClusterTrustBundleProjection {
	return &v1.ClusterTrustBundleProjection{Name: &name}
}

func bySigner(selector *metav1.LabelSelector) *v1.ClusterTrustBundleProjection {
	return &v1.ClusterTrustBundleProjection{SignerName: new("example.com/signer"), LabelSelector: selector}
}

func TestTrustAnchors(t *testing.T) {
	const signer = "example.com/signer"
	everything, north := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "north"}}
	long := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 3000 {
		long.MatchLabels[fmt.Sprintf("example.com/a-key-that-makes-it-long-%d", i)] = "value"
	}
	for name, test := range map[string]struct {
		of   *v1.ClusterTrustBundleProjection
		want string
		err  string
	}{
		"by name": {byName("plain"), "a b", ""},
		"missing": {byName("gone"), "",
			`while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "gone" not found`},
		"all of a signer":   {bySigner(everything), "b c d", ""},
		"some of a signer":  {bySigner(north), "b c", ""},
		"no selector":       {bySigner(nil), "", "matched zero ClusterTrustBundles"},
		"neither":           {&v1.ClusterTrustBundleProjection{}, "", "requires either name or signerName to be set"},
		"selector too long": {bySigner(long), "", "is larger than 102400"},
		"selector is invalid": {bySigner(&metav1.LabelSelector{MatchLabels: map[string]string{"/": ""}}), "",
			"while parsing label selector"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _ := run(t, fake.NewClientset(bundle("plain", "", "", "b", "a", "b"),
					bundle("x", signer, "north", "b", "c"), bundle("y", signer, "south", "d", "c"),
					bundle("z", "example.com/other", "north", "e")))
				got, err := b.TrustAnchors(t.Context(), "pod", test.of)
				if test.err == "" {
					if err != nil || names(t, got) != test.want {
						t.Errorf("got %q, %v", names(t, got), err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %q, %v", names(t, got), err)
				}
				if test.of.Optional = new(true); strings.Contains(test.err, "not found") || strings.Contains(test.err, "zero") {
					if got, err := b.TrustAnchors(t.Context(), "pod", test.of); err != nil || len(got) != 0 {
						t.Errorf("optional: %q, %v", got, err)
					}
				}
			})
		})
	}
}

// TestTheOrderIsThePods: the order is undefined, and no file changes without need.
func TestTheOrderIsThePods(t *testing.T) {
	o := bundle("o", "", "", "a", "b", "c", "d", "e", "f", "g", "h")
	same := normalized("pod", o)
	if got := normalized("pod", o); string(got) != string(same) {
		t.Error("the same pod sees another order")
	}
	others := map[string]bool{}
	for i := range 20 {
		others[string(normalized(types.UID(fmt.Sprint(i)), o))] = true
	}
	if len(others) < 10 {
		t.Errorf("20 pods see %d orders", len(others))
	}
}

func TestAChangeWakesThosePodsThatItConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const signer = "example.com/signer"
		client := fake.NewClientset(bundle("named", "", "", "a"), bundle("signed", signer, "north", "b"))
		b, w := run(t, client)
		api := client.CertificatesV1().ClusterTrustBundles()
		for pod, of := range map[types.UID]*v1.ClusterTrustBundleProjection{
			"by-name": byName("named"), "by-signer": bySigner(&metav1.LabelSelector{}), "waits": byName("later"),
		} {
			_, err := b.TrustAnchors(t.Context(), pod, of)
			if (err != nil) != (pod == "waits") {
				t.Fatalf("%s: %v", pod, err)
			}
		}
		w.take()

		if _, err := api.Update(t.Context(), bundle("named", "", "", "a2"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.take(); got != "by-name" {
			t.Errorf("a change wakes %q", got)
		}
		if got, err := b.TrustAnchors(t.Context(), "by-name", byName("named")); err != nil || names(t, got) != "a2" {
			t.Errorf("after the change %q, %v", names(t, got), err)
		}
		same := bundle("named", "", "", "a2")
		same.Annotations = map[string]string{"a": "b"}
		if _, err := api.Update(t.Context(), same, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.take(); got != "" {
			t.Errorf("an annotation wakes %q", got)
		}
		if _, err := api.Create(t.Context(), bundle("later", "", "", "c"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.take(); got != "waits" {
			t.Errorf("what was missing wakes %q", got)
		}
		b.Forget("by-signer")
		if err := api.Delete(t.Context(), "signed", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.take(); got != "" {
			t.Errorf("a pod that is gone is woken: %q", got)
		}
	})
}

func TestWithoutAnAPIServer(t *testing.T) {
	b, err := New(nil, func(types.UID) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TrustAnchors(t.Context(), "pod", byName("a")); err == nil ||
		err.Error() != "ClusterTrustBundle projection is not supported in static kubelet mode" {
		t.Error(err)
	}
}
