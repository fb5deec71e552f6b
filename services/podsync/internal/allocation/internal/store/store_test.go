package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// cpu are requirements of one limit.
func cpu(limit string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)}}
}

// containers are the resources of a pod whose containers have these limits.
func containers(nameAndLimit ...string) PodResources {
	r := PodResources{Containers: map[string]v1.ResourceRequirements{}}
	for pair := range slices.Chunk(nameAndLimit, 2) {
		r.Containers[pair[0]] = cpu(pair[1])
	}
	return r
}

func newPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "allocated_pods_state")
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Error(err)
	}
	return s
}

// has checks what the store has, and no more.
func has(t *testing.T, s *Store, want map[types.UID]PodResources) {
	t.Helper()
	if uids := s.UIDs(); !slices.Equal(uids, slices.Sorted(maps.Keys(want))) {
		t.Errorf("it has %q, want %d pods", uids, len(want))
	}
	for uid, w := range want {
		if got, ok := s.Get(uid); !ok || !equality.Semantic.DeepEqual(got, w) {
			t.Errorf("pod %s has %+v, %v, want %+v", uid, got, ok, w)
		}
	}
}

func TestStore(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	has(t, s, nil)
	if got, ok := s.Get("a"); ok || got.Pod != nil || len(got.Containers) > 0 {
		t.Errorf("there is a pod: %+v", got)
	}
	want := map[types.UID]PodResources{}
	pod := cpu("2")
	for _, step := range []struct {
		change func() error
		want   map[types.UID]PodResources
	}{
		{func() error { return s.Set("a", containers("c", "1", "d", "1")) },
			map[types.UID]PodResources{"a": containers("c", "1", "d", "1")}},
		{func() error { return s.SetContainer("a", "c", cpu("1500m")) },
			map[types.UID]PodResources{"a": containers("c", "1500m", "d", "1")}},
		{func() error { return s.SetContainer("b", "e", cpu("3")) },
			map[types.UID]PodResources{"b": containers("e", "3")}},
		{func() error { return s.SetPodLevel("b", &pod) },
			map[types.UID]PodResources{"b": {containers("e", "3").Containers, &pod}}},
		{func() error { return s.SetPodLevel("d", &pod) },
			map[types.UID]PodResources{"d": {map[string]v1.ResourceRequirements{}, &pod}}},
		{func() error { return s.SetPodLevel("b", nil) },
			map[types.UID]PodResources{"b": containers("e", "3")}},
		{func() error { return s.Set("a", containers()) }, map[types.UID]PodResources{"a": containers()}},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		maps.Copy(want, step.want)
		has(t, s, want)
		has(t, open(t, path), want)
	}
}

// TestTheKubeletsFile: what a kubelet has written is read, and a change writes the same but for the change.
func TestTheKubeletsFile(t *testing.T) {
	const file = `{"data":"{\"entries\":{` +
		`\"a\":{\"ContainerResources\":{\"c\":{\"limits\":{\"cpu\":\"1\"}}},\"PodLevelResources\":null,\"EmptyDirVolumeLimits\":{\"v\":\"1Gi\"}},` +
		`\"b\":{\"ContainerResources\":{},\"PodLevelResources\":{\"requests\":{\"memory\":\"1Gi\"}},\"EmptyDirVolumeLimits\":null}}}",` +
		`"checksum":133030233}`
	path := newPath(t)
	write(t, path, file)
	s := open(t, path)
	pod := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
	has(t, s, map[types.UID]PodResources{
		"a": containers("c", "1"), "b": {map[string]v1.ResourceRequirements{}, &pod},
	})
	if err := s.SetContainer("a", "c", cpu("2")); err != nil {
		t.Fatal(err)
	}
	text := read(t, path)
	if want := strings.Replace(file, `\"cpu\":\"1\"`, `\"cpu\":\"2\"`, 1); cutSum(text) != cutSum(want) {
		t.Errorf("it is now\n%s, want\n%s", text, want)
	}
	if err := s.SetContainer("a", "c", cpu("1")); err != nil {
		t.Fatal(err)
	}
	if text := read(t, path); text != file {
		t.Errorf("it is now\n%s, want\n%s", text, file)
	}
}

func cutSum(file string) string { return file[:strings.LastIndex(file, ":")] }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWhatIsReturnedAndGivenIsACopy(t *testing.T) {
	s := open(t, newPath(t))
	given := containers("c", "1")
	given.Pod = new(cpu("1"))
	if err := s.Set("a", given); err != nil {
		t.Fatal(err)
	}
	got, _ := s.Get("a")
	for _, r := range []PodResources{given, got} {
		r.Containers["d"] = cpu("7")
		r.Containers["c"].Limits[v1.ResourceCPU] = resource.MustParse("7")
		r.Pod.Limits[v1.ResourceCPU] = resource.MustParse("7")
	}
	want := containers("c", "1")
	want.Pod = new(cpu("1"))
	has(t, s, map[types.UID]PodResources{"a": want})
}

func TestRemovedPodsAreInTheFileUntilTheNextChange(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	want := map[types.UID]PodResources{"a": containers("c", "1"), "b": containers(), "d": containers("e", "2")}
	for uid, r := range want {
		if err := s.Set(uid, r); err != nil {
			t.Fatal(err)
		}
	}
	s.Remove("a")
	s.Remove("none")
	has(t, open(t, path), want)
	delete(want, "a")
	has(t, s, want)
	s.Retain(map[types.UID]bool{"d": true, "none": true, "b": false})
	delete(want, "b")
	has(t, s, want)
	if err := s.Set("f", containers()); err != nil {
		t.Fatal(err)
	}
	want["f"] = containers()
	has(t, open(t, path), want)
	s.Retain(nil)
	has(t, s, nil)
	has(t, open(t, path), want)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	has(t, open(t, path), nil)
}

// A write under way is one that waits for the turn.
func holdTurn(s *Store) (release func()) {
	s.turn <- struct{}{}
	return func() { <-s.turn }
}

// TestChangesAreWrittenTogether: the pods of a start do not wait for one write each, and readers for none.
func TestChangesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		s := open(t, path)
		if err := s.Set("first", containers("c", "1")); err != nil {
			t.Fatal(err)
		}
		release := holdTurn(s)
		const pods = 110
		want := map[types.UID]PodResources{"first": containers("c", "2", "d", "3")}
		var wg sync.WaitGroup
		set := func(change func() error) {
			wg.Go(func() {
				if err := change(); err != nil {
					t.Error(err)
				}
			})
		}
		for n := range pods {
			uid := types.UID(fmt.Sprint("pod", n))
			want[uid] = containers("c", "1")
			set(func() error { return s.Set(uid, containers("c", "1")) })
		}
		// Changes of one pod add up.
		set(func() error { return s.SetContainer("first", "c", cpu("2")) })
		set(func() error { return s.SetContainer("first", "d", cpu("3")) })
		synctest.Wait()
		has(t, s, map[types.UID]PodResources{"first": containers("c", "1")})
		all := s.next
		if len(all.changes) != pods+2 {
			t.Errorf("%d changes wait for the next write", len(all.changes))
		}
		release()
		wg.Wait()
		if len(s.next.changes) > 0 || s.underWay != nil {
			t.Error("there was more than one write")
		}
		has(t, s, want)
		has(t, open(t, path), want)
	})
}

// TestAPodThatIsRemovedMeanwhileStaysRemoved: it is removed while its change waits, and while it is written.
func TestAPodThatIsRemovedMeanwhileStaysRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		s := open(t, path)
		if err := errors.Join(s.Set("a", containers("c", "1")), s.Set("old", containers())); err != nil {
			t.Fatal(err)
		}
		release := holdTurn(s)
		var wg sync.WaitGroup
		change := func(uid types.UID) {
			wg.Go(func() {
				if err := s.SetContainer(uid, "d", cpu("2")); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		change("a")
		change("new")
		s.Remove("a")
		s.Retain(nil) // "new" is newer than this list
		change("old")
		release()
		wg.Wait()
		want := map[types.UID]PodResources{"new": containers("d", "2"), "old": containers("d", "2")}
		has(t, s, want)
		has(t, open(t, path), want)
	})
}

func TestAChangeThatIsNotWrittenDoesNotCount(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatalf("run the tests as root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path, filler := filepath.Join(dir, "state"), filepath.Join(dir, "filler")
	s := open(t, path)
	want := map[types.UID]PodResources{"a": containers("c", "1")}
	if err := s.Set("a", want["a"]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	for n, change := range []func() error{
		func() error { return s.Set("b", containers("c", "1")) },
		func() error { return s.Set("b", containers("c", "1")) },
		func() error { return s.SetContainer("a", "c", cpu("2")) },
		s.Flush, // what the disk has is not known now
	} {
		if err := change(); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("change %d on a full disk: %v", n, err)
		}
		has(t, s, want)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	has(t, open(t, path), want)
	want["b"] = containers("d", "3")
	if err := s.Set("b", want["b"]); err != nil {
		t.Error(err)
	}
	has(t, s, want)
	has(t, open(t, path), want)
}

// TestALargePodHarmsNoOther: it is alone in being refused, although others are written with it.
func TestALargePodHarmsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		s := open(t, path)
		release := holdTurn(s)
		var wg sync.WaitGroup
		large := PodResources{Containers: map[string]v1.ResourceRequirements{}}
		for n := range 10000 {
			large.Containers[fmt.Sprint("container", n)] = cpu("1")
		}
		huge := containers("c", "1e2147483647")
		for uid, c := range map[types.UID]struct {
			r    PodResources
			want string
		}{
			"ok":    {containers("c", "1"), ""},
			"large": {large, `the resources of pod "large": it has `},
			"huge":  {huge, `the resources of pod "huge": container "c": quantity "10e2147483646" has the exponent 2147483646, `},
		} {
			wg.Go(func() {
				err := s.Set(uid, c.r)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
					t.Errorf("%s: %v, want %s", uid, err, c.want)
				}
			})
		}
		synctest.Wait()
		release()
		wg.Wait()
		want := map[types.UID]PodResources{"ok": containers("c", "1")}
		has(t, s, want)
		has(t, open(t, path), want)
	})
}

func TestAllPodsTogetherAreBounded(t *testing.T) {
	entries := map[types.UID]entry{"other": {text: json.RawMessage(strings.Repeat(" ", maxEntries-100))}}
	c := &change{uid: "a", apply: func(r *PodResources) { *r = containers("c", "1") }}
	size, err := c.make(entries, maxEntries-100)
	if err == nil || !strings.HasPrefix(err.Error(), `the resources of pod "a" have `) || size != maxEntries-100 ||
		len(entries) != 1 {
		t.Errorf("%d bytes of %d entries: %v", size, len(entries), err)
	}
	// What is too large already may become smaller.
	c.uid = "other"
	if _, err := c.make(entries, 2*maxEntries); err != nil {
		t.Error(err)
	}
}

// TestManyAtOnce: whatever is done at once, the file has in the end what the store has.
func TestManyAtOnce(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	var wg sync.WaitGroup
	for worker := range uint64(8) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, worker))
			own := types.UID(fmt.Sprint("own", worker))
			for range 60 {
				uid := types.UID(fmt.Sprint("pod", random.IntN(4)))
				var err error
				switch random.IntN(8) {
				case 0:
					s.Remove(uid)
				case 1:
					s.Retain(map[types.UID]bool{own: true})
				case 2:
					err = s.Flush()
				case 3:
					err = s.Set(uid, containers("c", "1"))
				case 4:
					err = s.SetPodLevel(uid, new(cpu("1")))
				default:
					err = s.SetContainer(own, "c", cpu(fmt.Sprint(random.IntN(9))))
				}
				if err != nil {
					t.Error(err)
				}
				s.Get(uid)
			}
			if err := s.Set(own, containers("last", fmt.Sprint(worker))); err != nil {
				t.Error(err)
			}
			if got, ok := s.Get(own); ok && !equality.Semantic.DeepEqual(got, containers("last", fmt.Sprint(worker))) {
				t.Errorf("pod %s has %+v", own, got)
			}
		})
	}
	wg.Wait()
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	want := map[types.UID]PodResources{}
	for _, uid := range s.UIDs() {
		want[uid], _ = s.Get(uid)
	}
	has(t, open(t, path), want)
}
