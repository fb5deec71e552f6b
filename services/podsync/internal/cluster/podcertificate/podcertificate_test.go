package podcertificate

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// world is a cluster with a node, a pod and a signer.
type world struct {
	t      *testing.T
	api    *fake.Clientset
	events *record.FakeRecorder
	own    *Certificates

	mu sync.Mutex
	// sign answers a request; nil leaves it pending. refuse is how the API server answers instead of taking it.
	sign   func(*certificatesv1.PodCertificateRequestStatus)
	refuse error
	// behind is by how much the API server's clock is behind the node's.
	behind time.Duration
	made   []*certificatesv1.PodCertificateRequest
	woken  []types.UID
}

func pod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod-uid"},
		Spec: v1.PodSpec{ServiceAccountName: "sa"}}
}

func source() *v1.PodCertificateProjection {
	return &v1.PodCertificateProjection{
		SignerName: "example.com/signer", KeyType: "ED25519", MaxExpirationSeconds: new(int32(7200)),
		UserAnnotations: map[string]string{"example.com/a": "b"},
	}
}

func run(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, events: record.NewFakeRecorder(20)}
	w.api = fake.NewClientset(&v1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid"},
	})
	w.api.PrependReactor("create", "podcertificaterequests", w.create)
	var err error
	w.own, err = New(Options{
		Client: w.api, NodeName: "n",
		Node: func() *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{UID: "node-uid"}} },
		Changed: func(pod types.UID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.woken = append(w.woken, pod)
		},
		Events: w.events, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.own.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// create is the API server: it names the request, and the signer signs it a second later.
func (w *world) create(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return true, nil, w.refuse
	}
	o := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest).DeepCopy()
	o.Name = fmt.Sprintf("%s%d", o.GenerateName, len(w.made))
	o.CreationTimestamp = metav1.NewTime(time.Now().Add(-w.behind))
	w.made = append(w.made, o)
	if err := w.api.Tracker().Add(o); err != nil {
		w.t.Error(err)
	}
	if sign := w.sign; sign != nil {
		time.AfterFunc(time.Second, func() { w.answer(o.Name, sign) })
	}
	return true, o, nil
}

// answer has the signer answer a request.
func (w *world) answer(name string, sign func(*certificatesv1.PodCertificateRequestStatus)) {
	requests := w.api.CertificatesV1().PodCertificateRequests("ns")
	found, err := requests.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return // the test is over, or has deleted it
	}
	found = found.DeepCopy()
	sign(&found.Status)
	if _, err := requests.UpdateStatus(w.t.Context(), found, metav1.UpdateOptions{}); err != nil {
		w.t.Error(err)
	}
}

func (w *world) set(sign func(*certificatesv1.PodCertificateRequestStatus), refuse error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sign, w.refuse = sign, refuse
}

func (w *world) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.made)
}

func (w *world) wakes() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.woken)
}

func (w *world) bundle() (Bundle, error) {
	return w.own.Bundle(w.t.Context(), pod(), Place{"v", 1}, source())
}

// event is the next Event, or nothing.
func (w *world) event() string {
	select {
	case e := <-w.events.Events:
		return e
	default:
		return ""
	}
}

// issue issues a certificate that only has a name.
func issue(name string) func(*certificatesv1.PodCertificateRequestStatus) {
	return func(s *certificatesv1.PodCertificateRequestStatus) {
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(name)})
		*s = certificatesv1.PodCertificateRequestStatus{
			Conditions:       []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued}},
			CertificateChain: "leaf\n" + string(text) + "rest\n",
			BeginRefreshAt:   new(metav1.NewTime(time.Now().Add(time.Hour))),
			NotAfter:         new(metav1.NewTime(time.Now().Add(2 * time.Hour))),
		}
	}
}

func chain(name string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(name)}))
}

func TestACertificateIsIssuedAndRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t)
		w.set(issue("first"), nil)
		first, err := w.bundle()
		if err != nil || string(first.Chain) != chain("first") ||
			!strings.HasPrefix(string(first.Key), "-----BEGIN PRIVATE KEY") {
			t.Fatalf("%s%s, %v", first.Key, first.Chain, err)
		}
		w.checkRequest()
		w.set(issue("second"), nil)
		time.Sleep(59 * time.Minute)
		if same, err := w.bundle(); err != nil || string(same.Key) != string(first.Key) || w.requests() != 1 {
			t.Errorf("before its time: %v, %d requests", err, w.requests())
		}

		// It is due, within the jitter. Until the next one is there, the first one serves.
		time.Sleep(time.Minute + jitter)
		woken := w.wakes()
		if same, err := w.bundle(); err != nil || string(same.Chain) != chain("first") || w.requests() != 2 {
			t.Errorf("when it is due: %s, %v, %d requests", same.Chain, err, w.requests())
		}
		time.Sleep(time.Second)
		if got := w.wakes() - woken; got != 1 {
			t.Errorf("the pod is woken %d times", got)
		}
		second, err := w.bundle()
		if err != nil || string(second.Chain) != chain("second") || string(second.Key) == string(first.Key) {
			t.Errorf("after the renewal: %s, %v", second.Chain, err)
		}
		if e := w.event(); e != "" {
			t.Errorf("event %q", e)
		}

		// A pod that is gone is forgotten.
		w.own.Forget("pod-uid")
		if got, err := w.bundle(); err != nil || string(got.Key) == string(second.Key) {
			t.Errorf("a new pod of the same UID gets the old key, %v", err)
		}
	})
}

// checkRequest looks at what the API server was asked for.
func (w *world) checkRequest() {
	w.t.Helper()
	o := w.made[0]
	proof, err := x509.ParseCertificateRequest(o.Spec.StubPKCS10Request)
	if err == nil {
		err = proof.CheckSignature()
	}
	if err != nil || len(proof.Subject.Names) != 0 {
		w.t.Errorf("proof of possession: %v", err)
	}
	got := o.Spec
	got.StubPKCS10Request = nil
	want := certificatesv1.PodCertificateRequestSpec{
		SignerName: "example.com/signer", PodName: "p", PodUID: "pod-uid", ServiceAccountName: "sa",
		ServiceAccountUID: "sa-uid", NodeName: "n", NodeUID: "node-uid", MaxExpirationSeconds: new(int32(7200)),
		UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
	}
	if fmt.Sprintf("%+v", got.String()) != fmt.Sprintf("%+v", want.String()) || o.GenerateName != "req-" ||
		len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != "pod-uid" {
		w.t.Errorf("asked for %+v", o)
	}
}

func TestASignerThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t)
		begun := time.Now()
		if _, err := w.bundle(); !errors.Is(err, errNotYet) || time.Since(begun) != patience {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if _, err := w.bundle(); !errors.Is(err, errNotYet) || w.requests() != 1 {
			t.Errorf("%v, %d requests", err, w.requests())
		}
		w.answer("req-0", issue("late"))
		if w.wakes() != 1 {
			t.Errorf("the pod is woken %d times", w.wakes())
		}
		if got, err := w.bundle(); err != nil || string(got.Chain) != chain("late") {
			t.Errorf("%s, %v", got.Chain, err)
		}
	})
}

func TestASignerThatRefuses(t *testing.T) {
	for kind, want := range map[string]struct{ err, event string }{
		certificatesv1.PodCertificateRequestConditionTypeDenied: {
			`PodCertificateRequest was permanently denied: reason="No" message="not you"`,
			`Warning Denied PodCertificateRequest ns/req-0 was denied, reason="No", message="not you"`,
		},
		certificatesv1.PodCertificateRequestConditionTypeFailed: {
			`PodCertificateRequest was permanently failed: reason="No" message="not you"`,
			`Warning Failed PodCertificateRequest ns/req-0 failed, reason="No", message="not you"`,
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := run(t)
				w.set(func(s *certificatesv1.PodCertificateRequestStatus) {
					s.Conditions = []metav1.Condition{{Type: kind, Reason: "No", Message: "not you"}}
				}, nil)
				for range 3 {
					if _, err := w.bundle(); err == nil || err.Error() != want.err {
						t.Errorf("got %v", err)
					}
					time.Sleep(time.Hour)
				}
				if w.requests() != 1 {
					t.Errorf("%d requests", w.requests())
				}
				if e := w.event(); e != want.event {
					t.Errorf("event %q", e)
				}
			})
		})
	}
}

func TestARequestThatIsDeletedIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t)
		_, _ = w.bundle()
		if err := w.api.CertificatesV1().PodCertificateRequests("ns").Delete(t.Context(), "req-0",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(abandonAfter - time.Minute)
		if _, err := w.bundle(); !errors.Is(err, errNotYet) || w.requests() != 1 {
			t.Errorf("before its time: %v, %d requests", err, w.requests())
		}
		w.set(issue("again"), nil)
		time.Sleep(time.Minute + jitter)
		if got, err := w.bundle(); err != nil || string(got.Chain) != chain("again") || w.requests() != 2 {
			t.Errorf("%s, %v, %d requests", got.Chain, err, w.requests())
		}
	})
}

func TestAnAPIServerThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t)
		asked := 0
		w.api.PrependReactor("create", "podcertificaterequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			return false, nil, nil
		})
		w.set(nil, apierrors.NewBadRequest("no such key"))
		for range 600 { // ten minutes of questions
			_, err := w.bundle()
			if err == nil || !strings.Contains(err.Error(), "while creating PodCertificateRequest: no such key") {
				t.Fatalf("got %v", err)
			}
			time.Sleep(time.Second)
		}
		if asked < 5 || asked > 12 {
			t.Errorf("it was asked %d times in ten minutes", asked)
		}
		w.set(issue("at last"), nil)
		time.Sleep(6 * time.Minute)
		if _, err := w.bundle(); err != nil {
			t.Error(err)
		}

		// A renewal that fails is reported when it has been due for long, and when the certificate has expired.
		w.set(nil, apierrors.NewForbidden(schema.GroupResource{Resource: "podcertificaterequests"}, "", errors.New("no")))
		time.Sleep(time.Hour + jitter + overdueAfter + time.Minute)
		for range 2 {
			if got, err := w.bundle(); err != nil || string(got.Chain) != chain("at last") {
				t.Errorf("%s, %v", got.Chain, err)
			}
		}
		if e := w.event(); e != "Warning CertificateOverdueForRefresh PodCertificate refresh overdue" {
			t.Errorf("event %q", e)
		}
		time.Sleep(time.Hour)
		_, _ = w.bundle()
		if e := w.event(); e != "Warning CertificateExpired PodCertificate expired" {
			t.Errorf("event %q", e)
		}
		if e := w.event(); e != "" {
			t.Errorf("event %q is sent again", e)
		}
	})
}

func TestANodeThatIsNotRegisteredYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t)
		w.own.o.Node = func() *v1.Node { return &v1.Node{} }
		_, err := w.bundle()
		if err == nil || !strings.HasPrefix(err.Error(), "while getting node object from local cache") {
			t.Error(err)
		}
	})
}

func TestWithoutAnAPIServer(t *testing.T) {
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Bundle(t.Context(), pod(), Place{}, source()); !errors.Is(err, errStandalone) {
		t.Error(err)
	}
}

func curve(bits int) func(key any) bool {
	return func(key any) bool {
		k, ok := key.(*ecdsa.PrivateKey)
		return ok && k.Curve.Params().BitSize == bits
	}
}

func TestKeys(t *testing.T) {
	for kind, is := range map[string]func(key any) bool{
		"RSA3072":   func(key any) bool { k, ok := key.(*rsa.PrivateKey); return ok && k.N.BitLen() == 3072 },
		"ECDSAP256": curve(256),
		"ECDSAP384": curve(384),
		"ECDSAP521": curve(521),
		"ED25519":   func(key any) bool { _, ok := key.(ed25519.PrivateKey); return ok },
	} {
		text, proof, err := newKey(kind)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		block, rest := pem.Decode(text)
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil || len(rest) > 0 || !is(key) {
			t.Errorf("%s: a %T, %v", kind, key, err)
		}
		request, err := x509.ParseCertificateRequest(proof)
		if err != nil || request.CheckSignature() != nil {
			t.Errorf("%s: proof: %v", kind, err)
		}
	}
	if _, _, err := newKey("DSA"); err == nil || err.Error() != `unknown key type "DSA"` {
		t.Error(err)
	}
}

// TestKeysOfOneNamespaceHoldUpNoOther: a pod may want hundreds of keys, each of which takes a processor for seconds.
func TestKeysOfOneNamespaceHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t)
		var under, most, made atomic.Int32
		w.own.generate = func(kind string) (key, proof []byte, err error) {
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(2 * time.Second)
			under.Add(-1)
			made.Add(1)
			return newKey(kind)
		}
		if err := w.api.Tracker().Add(&v1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "sa"},
		}); err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			go func() { _, _ = w.own.Bundle(t.Context(), pod(), Place{Volume: "v", Source: i}, source()) }()
		}
		synctest.Wait()
		other := pod()
		other.Namespace, other.UID = "other", "other-uid"
		go func() { _, _ = w.own.Bundle(t.Context(), other, Place{Volume: "v"}, source()) }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		asked := slices.ContainsFunc(w.made,
			func(r *certificatesv1.PodCertificateRequest) bool { return r.Namespace == "other" })
		w.mu.Unlock()
		if most.Load() != 1 || !asked {
			t.Errorf("%d keys were made at one time, %d in all, and that of the other namespace: %t", most.Load(), made.Load(),
				asked)
		}
		time.Sleep(time.Minute) // until all have ended or given up
	})
}

// TestAClockThatIsWrong by a year has the API server asked once in a while, although each certificate is due for
// renewal, and seems to have been requested long ago, when it comes.
func TestAClockThatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		w := run(t)
		w.set(func(s *certificatesv1.PodCertificateRequestStatus) {
			issue("past")(s)
			s.BeginRefreshAt.Time, s.NotAfter.Time = s.BeginRefreshAt.Add(-year), s.NotAfter.Add(-year)
		}, nil)
		w.behind = year
		for range 3600 { // each answer wakes the pod
			if got, err := w.bundle(); err != nil || string(got.Chain) != chain("past") {
				t.Fatalf("%s, %v", got.Chain, err)
			}
			for w.event() != "" { // that the certificate has expired
			}
			time.Sleep(time.Second)
		}
		if n := w.requests(); n < 2 || n > 1+int(time.Hour/renewalPause) {
			t.Errorf("%d requests in an hour", n)
		}
	})
}
