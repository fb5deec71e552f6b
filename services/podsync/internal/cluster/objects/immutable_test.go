package objects

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// fixed is the node's view of one immutable object, which pod a names and which is no longer watched.
type fixed struct {
	t      *testing.T
	client *fake.Clientset
	store  *Store
	seen   *changes
	gets   atomic.Int32
	asked  atomic.Int32 // requests of any kind
	down   atomic.Bool
}

// immutable is the ConfigMap in a life of its own.
func immutable(value string) *v1.ConfigMap {
	c := configMap("c", value)
	c.UID, c.ResourceVersion, c.Immutable = types.UID(value), value, new(true)
	return c
}

func newFixed(t *testing.T, object *v1.ConfigMap) *fixed {
	f := &fixed{t: t, client: fake.NewClientset(object)}
	f.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		switch f.asked.Add(1); {
		case a.GetVerb() == "get":
			f.gets.Add(1)
			time.Sleep(time.Second)
		case a.GetVerb() != "list" && a.GetVerb() != "watch":
			return false, nil, nil
		}
		if f.down.Load() {
			return true, nil, errors.New("no answer")
		}
		return false, nil, nil
	})
	f.store, f.seen = watching(t, f.client)
	f.store.Register(naming("a", "c"))
	f.store.content(t, "c")
	f.settle()
	return f
}

// settle waits until all watches have begun, and those of immutable objects have ended.
func (f *fixed) settle() {
	time.Sleep(3 * watchDelay)
	synctest.Wait()
}

// replace deletes the object and creates it again.
func (f *fixed) replace(by *v1.ConfigMap) {
	f.t.Helper()
	f.remove()
	f.create(by)
}

func (f *fixed) remove() {
	f.t.Helper()
	if err := f.client.CoreV1().ConfigMaps("ns").Delete(f.t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixed) create(c *v1.ConfigMap) {
	f.t.Helper()
	if _, err := f.client.CoreV1().ConfigMaps("ns").Create(f.t.Context(), c, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// requests is how many f makes.
func (f *fixed) requests(do func()) int32 {
	before := f.asked.Load()
	do()
	return f.asked.Load() - before
}

func TestANewPodGetsAnImmutableObjectOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixed(t, immutable("old"))
		f.replace(immutable("new"))
		f.settle()
		if n := f.requests(func() { f.store.content(t, "c") }); n != 0 || f.store.content(t, "c") != "old" {
			t.Errorf("%d requests without a new pod", n)
		}
		f.store.Register(naming("b", "c"))
		if got := f.store.content(t, "c"); got != "new" {
			t.Errorf("the new pod gets %q", got)
		}
		synctest.Wait()
		if f.seen.times("a") != 1 {
			t.Errorf("the pod that runs was called %d times", f.seen.times("a"))
		}
		f.store.Register(naming("d", "c"))
		if n := f.requests(func() { f.store.content(t, "c"); f.store.content(t, "c"); f.settle() }); n != 1 {
			t.Errorf("%d requests for a new pod", n)
		}
		if f.seen.times("a") != 1 {
			t.Errorf("the pod that runs was called %d times, and nothing has changed", f.seen.times("a"))
		}
	})
}

func TestANewPodGetsAnImmutableSecretOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := func(value string) *v1.Secret {
			return &v1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "s", UID: types.UID(value), ResourceVersion: value,
			}, Immutable: new(true), Data: map[string][]byte{"k": []byte(value)}}
		}
		pulling := func(uid types.UID) *v1.Pod {
			p := naming(uid)
			p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "s"}}
			return p
		}
		client := fake.NewClientset(secret("old"))
		s, _ := watching(t, client)
		s.Register(pulling("a"))
		time.Sleep(3 * watchDelay)
		secrets := client.CoreV1().Secrets("ns")
		_, err := secrets.Create(t.Context(), secret("new"), metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if err := secrets.Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := secrets.Create(t.Context(), secret("new"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Register(pulling("b"))
		if got, err := s.Secret(t.Context(), "ns", "s"); err != nil || string(got.Data["k"]) != "new" {
			t.Errorf("the new pod gets %v, %v", got, err)
		}
	})
}

// TestAThousandNewPodsShareReads: of an immutable object one request is under way at a time.
func TestAThousandNewPodsShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixed(t, immutable("old"))
		f.replace(immutable("new"))
		before := f.gets.Load()
		var all sync.WaitGroup
		var wrong atomic.Int32
		for i := range 1000 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				f.store.Register(naming(types.UID(fmt.Sprint("b", i)), "c"))
				if got, err := f.store.ConfigMap(t.Context(), "ns", "c"); err != nil || got.Data["k"] != "new" {
					wrong.Add(1)
				}
			})
		}
		all.Wait()
		if n := f.gets.Load() - before; n > 2 {
			t.Errorf("%d requests of a second each for 1000 pods within a second", n)
		}
		if wrong.Load() > 0 {
			t.Errorf("%d pods get something else", wrong.Load())
		}
	})
}

// TestMutableObjectsCostNoRequest: the watch has them.
func TestMutableObjectsCostNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixed(t, versioned(configMap("c", "old"), "1"))
		if n := f.requests(func() {
			f.store.Register(naming("b", "c"))
			f.store.content(t, "c")
			f.settle()
		}); n != 0 {
			t.Errorf("%d requests for a new pod", n)
		}
	})
}

func TestAnImmutableObjectIsReplacedByAMutableOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixed(t, immutable("old"))
		f.replace(versioned(configMap("c", "new"), "1"))
		f.store.Register(naming("b", "c"))
		if got := f.store.content(t, "c"); got != "new" {
			t.Errorf("the new pod gets %q", got)
		}
		f.settle()
		if _, err := f.client.CoreV1().ConfigMaps("ns").Update(t.Context(), versioned(configMap("c", "newer"), "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := f.store.content(t, "c"); got != "newer" || f.seen.times("a") != 2 || f.seen.times("b") != 2 {
			t.Errorf("it is %q, pods called %v: want each for both changes", got, f.seen.pods)
		}
	})
}

func TestAnImmutableObjectIsAwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixed(t, immutable("old"))
		f.remove()
		f.store.Register(naming("b", "c"))
		if _, err := f.store.ConfigMap(t.Context(), "ns", "c"); !apierrors.IsNotFound(err) {
			t.Errorf("the new pod gets %v", err)
		}
		f.settle()
		f.create(immutable("new"))
		synctest.Wait()
		if got := f.store.content(t, "c"); got != "new" || f.seen.times("b") == 0 {
			t.Errorf("it is %q, and the pod that waits was called %d times", got, f.seen.times("b"))
		}
		f.settle()
		if n := f.requests(func() { f.store.content(t, "c"); f.settle() }); n != 0 {
			t.Errorf("%d requests after that", n)
		}
	})
}

// TestAnImmutableObjectSurvivesAnOutage: containers start again with what their pod has.
func TestAnImmutableObjectSurvivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixed(t, immutable("old"))
		f.replace(immutable("new"))
		f.down.Store(true)
		f.store.Register(naming("b", "c"))
		if got := f.store.content(t, "c"); got != "old" {
			t.Errorf("it is %q while the API server does not answer", got)
		}
		if n := f.requests(func() { f.store.content(t, "c") }); n != 0 {
			t.Errorf("%d requests right after one that failed", n)
		}
		f.down.Store(false)
		time.Sleep(defaultTimeout)
		if got := f.store.content(t, "c"); got != "new" {
			t.Errorf("it is %q after the outage", got)
		}
	})
}
