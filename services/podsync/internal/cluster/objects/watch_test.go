package objects

import (
	"context"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// versioned gives the object a version, which the fake apiserver does not do.
func versioned(c *v1.ConfigMap, version string) *v1.ConfigMap {
	c.UID, c.ResourceVersion = types.UID(c.Name), version
	return c
}

func naming(uid types.UID, configMaps ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: uid}}
	for _, name := range configMaps {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}})
	}
	return p
}

// changes collects the pods that were called for a change.
type changes struct {
	mu   sync.Mutex
	pods map[types.UID]int
}

func (t *changes) changed(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods[uid]++
}

func (t *changes) times(uid types.UID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[uid]
}

// watching is a store with the strategy Watch, which runs as long as the test.
func watching(t *testing.T, client *fake.Clientset) (*Store, *changes) {
	seen := &changes{pods: map[types.UID]int{}}
	s := New(client, Options{Strategy: Watch, Changed: seen.changed})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s, seen
}

func (s *Store) content(t *testing.T, name string) string {
	t.Helper()
	got, err := s.ConfigMap(t.Context(), "ns", name)
	if err != nil {
		t.Fatal(err)
	}
	return got.Data["k"]
}

func TestAChangeIsToldToThosePodsThatNameIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int32
		client := counting(&gets, 0, versioned(configMap("a", "1"), "1"), versioned(configMap("b", "1"), "1"))
		s, seen := watching(t, client)
		s.Register(naming("one", "a"))
		s.Register(naming("two", "a", "b"))
		s.Register(naming("three", "b"))
		for _, name := range []string{"a", "b"} {
			if got := s.content(t, name); got != "1" {
				t.Fatalf("%s is %q before any watch", name, got)
			}
		}
		time.Sleep(2 * watchDelay)
		synctest.Wait()
		if seen.times("one") != 0 {
			t.Error("called for a change although nothing changed")
		}
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), versioned(configMap("a", "2"), "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for uid, want := range map[types.UID]int{"one": 1, "two": 1, "three": 0} {
			if got := seen.times(uid); got != want {
				t.Errorf("pod %s was called for %d times, want %d", uid, got, want)
			}
		}
		if got := s.content(t, "a"); got != "2" {
			t.Errorf("it is %q after the change", got)
		}
		if gets.Load() != 2 {
			t.Errorf("%d reads, want one of each object: the watch has the rest", gets.Load())
		}
		if err := client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, err := s.ConfigMap(t.Context(), "ns", "a")
		if !apierrors.IsNotFound(err) || err.Error() != `configmap "a" not found` {
			t.Errorf("after the deletion: %v", err)
		}
		if seen.times("one") != 2 {
			t.Error("not called for the deletion")
		}
	})
}

func TestAnObjectThatIsWaitedForIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		s, seen := watching(t, client)
		s.Register(naming("u", "a"))
		if _, err := s.ConfigMap(t.Context(), "ns", "a"); !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		synctest.Wait() // the watch has begun without its delay
		if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), versioned(configMap("a", "1"), "1"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if seen.times("u") != 1 || s.content(t, "a") != "1" {
			t.Error("nothing was called for the pod that waits, or does not get it")
		}
	})
}

func TestWhatHappenedBeforeTheWatchIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(versioned(configMap("a", "1"), "1"))
		s, seen := watching(t, client)
		s.Register(naming("u", "a"))
		s.content(t, "a")
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), versioned(configMap("a", "2"), "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * watchDelay)
		synctest.Wait()
		if seen.times("u") != 1 || s.content(t, "a") != "2" {
			t.Error("a change between the read and the watch was lost")
		}
	})
}

func TestAWatchEndsWithItsLastPodOrWithItsObjectsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixed := versioned(configMap("fixed", "1"), "1")
		fixed.Immutable = new(true)
		client := fake.NewClientset(versioned(configMap("a", "1"), "1"), fixed)
		s, seen := watching(t, client)
		s.Register(naming("one", "a", "fixed"))
		s.Register(naming("two", "a"))
		time.Sleep(2 * watchDelay)
		synctest.Wait()
		open := func() int {
			w := s.configMaps.watches
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.items)
		}
		if s.content(t, "fixed") != "1" || open() != 2 {
			t.Fatalf("%d objects are kept, want 2", open())
		}
		changed := versioned(configMap("fixed", "2"), "2")
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.content(t, "fixed") != "1" || seen.times("one") != 0 {
			t.Error("an immutable object is still watched")
		}
		s.Register(naming("one", "fixed")) // it no longer names a
		s.Unregister("two")
		if open() != 1 {
			t.Errorf("%d objects are kept, want the one that a pod names", open())
		}
		s.Unregister("one")
		if open() != 0 {
			t.Errorf("%d objects are kept for no pod", open())
		}
	})
}

func TestGetReadsEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int32
		s := New(counting(&gets, 0, configMap("a", "1")), Options{Strategy: Get})
		for range 3 {
			s.content(t, "a")
			time.Sleep(time.Millisecond)
		}
		if gets.Load() != 3 {
			t.Errorf("%d reads of 3 asked for", gets.Load())
		}
	})
}

// TestAPodThatNamesManyObjects costs no more than some watches. What is not watched is as fresh as with Cache.
func TestAPodThatNamesManyObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets, watches atomic.Int32
		last := fmt.Sprintf("c%05d", 5*maxWatched-1)
		client := counting(&gets, 0, versioned(configMap(last, "1"), "1"))
		client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			watches.Add(1)
			return false, nil, nil
		})
		s, _ := watching(t, client)
		var names []string
		for i := range 5 * maxWatched {
			names = append(names, fmt.Sprintf("c%05d", i))
		}
		s.Register(naming("one", names...))
		time.Sleep(3 * watchDelay)
		synctest.Wait()
		if n := watches.Load(); n != maxWatched {
			t.Errorf("%d watches for one pod", n)
		}
		if got := s.content(t, last); got != "1" {
			t.Errorf("at first it is %q", got)
		}
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), versioned(configMap(last, "2"), "2"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultTTL)
		if got := s.content(t, last); got != "2" || gets.Load() != 2 {
			t.Errorf("after the TTL it is %q, read %d times", got, gets.Load())
		}
		s.Unregister("one")
		synctest.Wait()
		if n := len(s.configMaps.watches.items); n != 0 {
			t.Errorf("%d watches stay without a pod", n)
		}
	})
}

// TestPodsOfOneNamespaceThatNameManyObjects cost no more than a number of watches, and take none from others.
func TestPodsOfOneNamespaceThatNameManyObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gets atomic.Int32
		s, _ := watching(t, counting(&gets, 0))
		for i := range 20 {
			var names []string
			for j := range maxWatched {
				names = append(names, fmt.Sprintf("c%d-%d", i, j))
			}
			s.Register(naming(types.UID(fmt.Sprint(i)), names...))
		}
		other := naming("other", "c")
		other.Namespace = "other"
		s.Register(other)
		if n := len(s.configMaps.watches.items); n != maxOfNamespace+1 {
			t.Errorf("%d watches", n)
		}
		for i := range 20 {
			s.Unregister(types.UID(fmt.Sprint(i)))
		}
		s.Unregister("other")
		synctest.Wait()
		if w := s.configMaps.watches; len(w.items) != 0 || len(w.counts) != 0 {
			t.Errorf("%d watches stay without a pod, and are counted: %v", len(w.items), w.counts)
		}
	})
}

// TestWatchesLeaveTheClientToOthers: a client lets its requests through in their order, so few of them are to open
// watches.
func TestWatchesLeaveTheClientToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var under, most, opened atomic.Int32
		opens := func() {
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(time.Second)
			under.Add(-1)
		}
		life, end := context.WithCancel(t.Context())
		w := newWatches(life, fake.NewClientset(), resource[*v1.ConfigMap]{
			example: &v1.ConfigMap{}, immutable: func(*v1.ConfigMap) bool { return false },
			list: func(context.Context, string, metav1.ListOptions) (runtime.Object, error) {
				opens()
				return &v1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
			},
			watch: func(context.Context, string, metav1.ListOptions) (watch.Interface, error) {
				opens()
				opened.Add(1)
				return watch.NewFake(), nil
			},
		}, Options{}.withDefaults())
		for i := range 100 {
			w.add(key{"ns", fmt.Sprint("c", i)}, "pod")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if most.Load() > maxOpening || opened.Load() != 100 {
			t.Errorf("%d watches open at one time, %d in all", most.Load(), opened.Load())
		}
		end()
		w.running.Wait()
	})
}

// TestAListThatIsNone does not say that an object is gone.
func TestAListThatIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(versioned(configMap("a", "1"), "1"))
		client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &v1.ConfigMapList{}, nil // as client-go reads {}
		})
		s, seen := watching(t, client)
		s.Register(naming("one", "a"))
		for range 2 {
			if got := s.content(t, "a"); got != "1" {
				t.Errorf("the content is %q", got)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if n := seen.times("one"); n != 0 {
			t.Errorf("the pod is called %d times for a change", n)
		}
	})
}
