package objects

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	clientcache "k8s.io/client-go/tools/cache"
)

func configMap(name, value string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Data:       map[string]string{"k": value},
	}
}

// counting is a client that counts its gets, which take a while if asked to.
func counting(gets *atomic.Int32, wait time.Duration, objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		gets.Add(1)
		time.Sleep(wait)
		return false, nil, nil
	})
	return client
}

func TestGetIsFreshSharedAndShortLived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int32
		client := counting(&gets, time.Second, configMap("a", "1"))
		s := New(client, Options{})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if got, err := s.ConfigMap(t.Context(), "ns", "a"); err != nil || got.Data["k"] != "1" {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		all.Wait()
		if gets.Load() != 1 {
			t.Errorf("%d requests for 20 pods, want 1", gets.Load())
		}
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap("a", "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, _ := s.ConfigMap(t.Context(), "ns", "a"); got.Data["k"] != "1" {
			t.Error("read again within the TTL")
		}
		// A pod that starts sees what is there now.
		p := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"},
			Spec: v1.PodSpec{Containers: []v1.Container{{
				EnvFrom: []v1.EnvFromSource{{
					ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "a"}},
				}},
			}}},
		}
		s.Register(p)
		if got, _ := s.ConfigMap(t.Context(), "ns", "a"); got.Data["k"] != "2" {
			t.Error("a pod that starts got an old value")
		}
		// Registered twice is nothing new.
		s.Register(p)
		if _, err := s.ConfigMap(t.Context(), "ns", "a"); err != nil || gets.Load() != 2 {
			t.Errorf("%d requests, %v", gets.Load(), err)
		}
		time.Sleep(defaultTTL)
		if _, err := s.ConfigMap(t.Context(), "ns", "a"); err != nil || gets.Load() != 3 {
			t.Errorf("%d requests after the TTL, %v", gets.Load(), err)
		}
	})
}

func TestInvalidatedWhileUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var value atomic.Int32
		c := newCache(Options{}.withDefaults(), func(context.Context, string, string) (int32, error) {
			v := value.Load()
			time.Sleep(time.Second)
			return v, nil
		})
		k := key{"ns", "a"}
		go func() { _, _ = c.get(t.Context(), k) }()
		synctest.Wait()
		value.Store(1)
		c.invalidate(k)
		if got, err := c.get(t.Context(), k); err != nil || got != 1 {
			t.Errorf("got %d, %v: the answer to a question asked before the change", got, err)
		}
	})
}

func TestGetEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(Options{}.withDefaults(), func(ctx context.Context, _, _ string) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		began := time.Now()
		if _, err := c.get(t.Context(), key{}); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(began) != defaultTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if _, err := c.get(ctx, key{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(defaultTimeout)
	})
}

func TestNotFound(t *testing.T) {
	s := New(fake.NewClientset(), Options{})
	_, err := s.ConfigMap(t.Context(), "ns", "a")
	if !apierrors.IsNotFound(err) || err.Error() != `configmap "a" not found` {
		t.Errorf("err = %v", err)
	}
	_, err = New(nil, Options{}).Secret(t.Context(), "ns", "a")
	if err == nil || apierrors.IsNotFound(err) {
		t.Errorf("err = %v", err)
	}
}

// TestA404ThatIsNotTheAPIServers does not let a container start without what is optional.
func TestA404ThatIsNotTheAPIServers(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(404, "GET", v1.Resource("configmaps"), "a", "a page", 0, true)
	})
	_, err := New(client, Options{}).ConfigMap(t.Context(), "ns", "a")
	if err == nil || apierrors.IsNotFound(err) || !strings.HasPrefix(err.Error(), "couldn't get configMap ns/a") {
		t.Errorf("err = %v", err)
	}
}

func TestPullSecrets(t *testing.T) {
	s := New(fake.NewClientset(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}), Options{})
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns"},
		Spec:       v1.PodSpec{ImagePullSecrets: []v1.LocalObjectReference{{Name: "a"}, {Name: ""}, {Name: "b"}}},
	}
	found, missing, err := s.PullSecrets(t.Context(), p)
	if err != nil || len(found) != 1 || found[0].Name != "a" || !cmp.Equal(missing, []string{"b"}) {
		t.Errorf("%v, %v, %v", found, missing, err)
	}
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		asked := 0
		client := fake.NewClientset()
		client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if failing.Load() {
				return true, nil, errors.New("no answer")
			}
			asked++
			request := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
			request.Status.ExpirationTimestamp = metav1.NewTime(
				time.Now().Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second),
			)
			request.Status.Token = "token"
			return true, request, nil
		})
		tokens := NewTokens(client, Options{})
		get := func(seconds int64) error {
			_, err := tokens.Token(t.Context(), "ns", "sa",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
					ExpirationSeconds: ptr.To(seconds),
					BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", UID: "u"},
				}})
			return err
		}
		step := func(what string, wait time.Duration, seconds int64, want int, fails bool) {
			t.Helper()
			time.Sleep(wait)
			if err := get(seconds); (err != nil) != fails {
				t.Errorf("%s: err = %v", what, err)
			}
			if asked != want {
				t.Errorf("%s: %d requests, want %d", what, asked, want)
			}
		}
		step("first", 0, 3600, 1, false)
		step("at 79 %", 47*time.Minute, 3600, 1, false)
		step("at 80 %", time.Minute+time.Second, 3600, 2, false)
		failing.Store(true)
		step("no refresh, still valid", 50*time.Minute, 3600, 2, false)
		step("no refresh, expired", 11*time.Minute, 3600, 2, true)
		failing.Store(false)
		step("back", 0, 3600, 3, false)
		step("another life is another token", 0, 7*24*3600, 4, false)
		step("at 23 hours", 23*time.Hour, 7*24*3600, 4, false)
		step("a day old", time.Hour, 7*24*3600, 5, false)
		tokens.Collect()
		if len(tokens.cache) != 1 {
			t.Errorf("%d tokens held, want the one that is valid", len(tokens.cache))
		}
		tokens.Forget("u")
		if len(tokens.cache) != 0 {
			t.Error("tokens of a pod that is gone are held")
		}
	})
}

func TestServices(t *testing.T) {
	index := clientcache.NewIndexer(clientcache.MetaNamespaceKeyFunc,
		clientcache.Indexers{clientcache.NamespaceIndex: clientcache.MetaNamespaceIndexFunc})
	for _, s := range []*v1.Service{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
			Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []v1.ServicePort{{Name: "https", Port: 443, Protocol: "TCP"}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "my-db"},
			Spec: v1.ServiceSpec{ClusterIP: "fd00::5",
				Ports: []v1.ServicePort{{Port: 53, Protocol: "UDP"}, {Name: "x-y", Port: 54}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "headless"}, Spec: v1.ServiceSpec{ClusterIP: "None"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "other"},
			Spec: v1.ServiceSpec{ClusterIP: "10.0.0.9", Ports: []v1.ServicePort{{Port: 1}}}},
	} {
		if err := index.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	s := NewServices(corelisters.NewServiceLister(index), func() bool { return true })
	api := map[string]string{
		"KUBERNETES_SERVICE_HOST":       "10.0.0.1",
		"KUBERNETES_SERVICE_PORT":       "443",
		"KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT":               "tcp://10.0.0.1:443",
		"KUBERNETES_PORT_443_TCP":       "tcp://10.0.0.1:443",
		"KUBERNETES_PORT_443_TCP_PROTO": "tcp",
		"KUBERNETES_PORT_443_TCP_PORT":  "443",
		"KUBERNETES_PORT_443_TCP_ADDR":  "10.0.0.1",
	}
	got, err := s.Env("ns", false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(api, got); diff != "" {
		t.Error(diff)
	}
	for k, v := range map[string]string{
		"MY_DB_SERVICE_HOST":      "fd00::5",
		"MY_DB_SERVICE_PORT":      "53",
		"MY_DB_SERVICE_PORT_X_Y":  "54",
		"MY_DB_PORT":              "udp://[fd00::5]:53",
		"MY_DB_PORT_53_UDP":       "udp://[fd00::5]:53",
		"MY_DB_PORT_53_UDP_PROTO": "udp",
		"MY_DB_PORT_53_UDP_PORT":  "53",
		"MY_DB_PORT_53_UDP_ADDR":  "fd00::5",
		"MY_DB_PORT_54_TCP":       "tcp://[fd00::5]:54",
		"MY_DB_PORT_54_TCP_PROTO": "tcp",
		"MY_DB_PORT_54_TCP_PORT":  "54",
		"MY_DB_PORT_54_TCP_ADDR":  "fd00::5",
	} {
		api[k] = v
	}
	if got, err = s.Env("ns", true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(api, got); diff != "" {
		t.Error(diff)
	}
	if alone := NewServices(nil, nil); !alone.Synced() {
		t.Error("a node without an apiserver waits for services")
	}
}

// Two Services can have a variable of the same name. Which of them it is of does not change from start to start.
func TestServicesWithTheSameVariable(t *testing.T) {
	index := clientcache.NewIndexer(clientcache.MetaNamespaceKeyFunc, clientcache.Indexers{})
	for i, name := range []string{"a", "a-service"} {
		if err := index.Add(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []v1.ServicePort{{Port: 80 + int32(i)}}}}); err != nil {
			t.Fatal(err)
		}
	}
	s := NewServices(corelisters.NewServiceLister(index), func() bool { return true })
	for range 50 {
		got, err := s.Env("ns", true)
		if err != nil || got["A_SERVICE_PORT"] != "80" || got["A_SERVICE_SERVICE_PORT"] != "81" {
			t.Fatalf("A_SERVICE_PORT=%s, %v; want that of a", got["A_SERVICE_PORT"], err)
		}
	}
}

// TestAnOutageLeavesWhatIsHeld: with the strategy Cache a container starts again although the apiserver has been away
// for longer than the TTL, and soon has what is new when it is back. With Get nothing is held.
func TestAnOutageLeavesWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, down := fake.NewClientset(configMap("a", "1")), atomic.Bool{}
		client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !down.Load() {
				return false, nil, nil
			}
			time.Sleep(5 * time.Second) // an unanswered dial
			return true, nil, errors.New("connection refused")
		})
		uses := func(uid types.UID) *v1.Pod {
			return &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: uid},
				Spec: v1.PodSpec{Containers: []v1.Container{{
					EnvFrom: []v1.EnvFromSource{{
						ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "a"}},
					}},
				}}},
			}
		}
		held, none := New(client, Options{Strategy: Cache}), New(client, Options{Strategy: Get})
		held.Register(uses("1"))
		held.Register(uses("2"))
		want := func(s *Store, value, why string) {
			t.Helper()
			got, err := s.ConfigMap(t.Context(), "ns", "a")
			if err != nil || got.Data["k"] != value {
				t.Errorf("%s: %v, %v, want %q", why, got, err, value)
			}
		}
		want(held, "1", "Cache")
		want(none, "1", "Get")
		down.Store(true)
		time.Sleep(time.Hour)
		want(held, "1", "Cache in an outage")
		began := time.Now()
		want(held, "1", "Cache, asked in vain a moment ago")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("waited %v for an apiserver that has just not answered", waited)
		}
		if got, err := none.ConfigMap(t.Context(), "ns", "a"); err == nil {
			t.Errorf("Get in an outage: %v", got)
		}
		held.Unregister("2") // the other pod still needs it
		time.Sleep(time.Hour)
		want(held, "1", "Cache after another pod's end")
		down.Store(false)
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap("a", "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultTimeout)
		want(held, "2", "Cache after the outage")
		if err := client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultTTL)
		if got, err := held.ConfigMap(t.Context(), "ns", "a"); !apierrors.IsNotFound(err) {
			t.Errorf("a deleted object: %v, %v", got, err)
		}
	})
}

// TestAnAnswerWithoutAToken replaces none that is valid, and a pod gets none.
func TestAnAnswerWithoutAToken(t *testing.T) {
	c := fake.NewClientset()
	c.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.TokenRequest{}, nil // as client-go reads {}
	})
	got, err := NewTokens(c, Options{}).Token(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
	if err == nil {
		t.Errorf("the token is %q", got.Status.Token)
	}
}

// TestAnAnswerThatIsNoObject is neither an object without content, nor is there none.
func TestAnAnswerThatIsNoObject(t *testing.T) {
	c := fake.NewClientset()
	c.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &v1.ConfigMap{}, nil // as client-go reads {}
	})
	got, err := New(c, Options{}).ConfigMap(t.Context(), "ns", "a")
	if err == nil || apierrors.IsNotFound(err) {
		t.Errorf("%v, %v", got, err)
	}
}
