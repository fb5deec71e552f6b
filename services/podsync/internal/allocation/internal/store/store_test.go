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

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// cpu are requirements of one limit.
func cpu(limit string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)}}
}

// containers are the resources of a pod whose containers have these limits.
func containers(nameAndLimit ...string) pod.Resources {
	r := pod.Resources{Containers: map[string]v1.ResourceRequirements{}}
	for pair := range slices.Chunk(nameAndLimit, 2) {
		r.Containers[pair[0]] = cpu(pair[1])
	}
	return r
}

func setOne(s *Store, uid types.UID, r pod.Resources) error {
	return s.Write(map[types.UID]*pod.Resources{uid: &r})[uid]
}

func setContainer(s *Store, uid types.UID, name string, r v1.ResourceRequirements) error {
	is, _ := s.Get(uid)
	all := maps.Clone(is.Containers)
	if all == nil {
		all = map[string]v1.ResourceRequirements{}
	}
	all[name] = r
	return setOne(s, uid, pod.Resources{Containers: all, Pod: is.Pod})
}

func setPodLevel(s *Store, uid types.UID, r *v1.ResourceRequirements) error {
	is, _ := s.Get(uid)
	return setOne(s, uid, pod.Resources{Containers: is.Containers, Pod: r})
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
func has(t *testing.T, s *Store, want map[types.UID]pod.Resources) {
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
	want := map[types.UID]pod.Resources{}
	level := cpu("2")
	for _, step := range []struct {
		change func() error
		want   map[types.UID]pod.Resources
	}{
		{func() error { return setOne(s, "a", containers("c", "1", "d", "1")) },
			map[types.UID]pod.Resources{"a": containers("c", "1", "d", "1")}},
		{func() error { return setContainer(s, "a", "c", cpu("1500m")) },
			map[types.UID]pod.Resources{"a": containers("c", "1500m", "d", "1")}},
		{func() error { return setContainer(s, "b", "e", cpu("3")) },
			map[types.UID]pod.Resources{"b": containers("e", "3")}},
		{func() error { return setPodLevel(s, "b", &level) },
			map[types.UID]pod.Resources{"b": {Containers: containers("e", "3").Containers, Pod: &level}}},
		{func() error { return setPodLevel(s, "d", &level) },
			map[types.UID]pod.Resources{"d": {Containers: map[string]v1.ResourceRequirements{}, Pod: &level}}},
		{func() error { return setPodLevel(s, "b", nil) },
			map[types.UID]pod.Resources{"b": containers("e", "3")}},
		{func() error { return setOne(s, "a", containers()) }, map[types.UID]pod.Resources{"a": containers()}},
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
	level := v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
	has(t, s, map[types.UID]pod.Resources{
		"a": containers("c", "1"), "b": {Containers: map[string]v1.ResourceRequirements{}, Pod: &level},
	})
	if err := setContainer(s, "a", "c", cpu("2")); err != nil {
		t.Fatal(err)
	}
	text := read(t, path)
	if want := strings.Replace(file, `\"cpu\":\"1\"`, `\"cpu\":\"2\"`, 1); cutSum(text) != cutSum(want) {
		t.Errorf("it is now\n%s, want\n%s", text, want)
	}
	if err := setContainer(s, "a", "c", cpu("1")); err != nil {
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

// TestPodsThatChangeTogether take one write, which has all of them.
func TestPodsThatChangeTogether(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	if err := errors.Join(setOne(s, "gone", containers("c", "1")), setOne(s, "b", containers("c", "1"))); err != nil {
		t.Fatal(err)
	}
	changes, want := map[types.UID]*pod.Resources{"gone": nil, "unknown": nil}, map[types.UID]pod.Resources{}
	for n := range 110 {
		uid, r := types.UID(fmt.Sprint("pod", n)), containers("c", fmt.Sprint(n))
		changes[uid], want[uid] = &r, r
	}
	want["b"] = containers("c", "1")
	if failed := s.Write(changes); len(failed) > 0 {
		t.Error(failed)
	}
	has(t, s, want)
	has(t, open(t, path), want)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if failed := s.Write(changes); len(failed) > 0 {
		t.Error(failed)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("a change that changes nothing was written: %v", err)
	}
}

func TestAChangeThatIsNotWrittenDoesNotCount(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatalf("run the tests as root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path, filler := filepath.Join(dir, "state"), filepath.Join(dir, "filler")
	s := open(t, path)
	want := map[types.UID]pod.Resources{"a": containers("c", "1")}
	if err := setOne(s, "a", want["a"]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	for n, change := range []func() error{
		func() error { return setOne(s, "b", containers("c", "1")) },
		func() error { return setOne(s, "b", containers("c", "1")) },
		func() error { return setContainer(s, "a", "c", cpu("2")) },
		func() error { return s.Write(map[types.UID]*pod.Resources{"a": nil})["a"] },
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
	if err := setOne(s, "b", want["b"]); err != nil {
		t.Error(err)
	}
	has(t, s, want)
	has(t, open(t, path), want)
}

// TestALargePodHarmsNoOther: it is alone in being refused, although others are written with it.
func TestALargePodHarmsNoOther(t *testing.T) {
	path := newPath(t)
	s := open(t, path)
	ok, huge := containers("c", "1"), containers("c", "1e2147483647")
	large := pod.Resources{Containers: map[string]v1.ResourceRequirements{}}
	for n := range 10000 {
		large.Containers[fmt.Sprint("container", n)] = cpu("1")
	}
	failed := s.Write(map[types.UID]*pod.Resources{"ok": &ok, "large": &large, "huge": &huge})
	for uid, want := range map[types.UID]string{
		"large": `the resources of pod "large": it has `,
		"huge":  `the resources of pod "huge": container "c": quantity "10e2147483646" has the exponent 2147483646, `,
	} {
		if err := failed[uid]; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", uid, err, want)
		}
	}
	if failed["ok"] != nil {
		t.Error(failed["ok"])
	}
	want := map[types.UID]pod.Resources{"ok": ok}
	has(t, s, want)
	has(t, open(t, path), want)
}

func TestAllPodsTogetherAreBounded(t *testing.T) {
	entries := map[types.UID]entry{"other": {text: json.RawMessage(strings.Repeat(" ", maxEntries-100))}}
	size, err := set(entries, maxEntries-100, "a", containers("c", "1"))
	if err == nil || !strings.HasPrefix(err.Error(), `the resources of pod "a" have `) || size != maxEntries-100 ||
		len(entries) != 1 {
		t.Errorf("%d bytes of %d entries: %v", size, len(entries), err)
	}
	// What is too large already may become smaller.
	if _, err := set(entries, 2*maxEntries, "other", containers("c", "1")); err != nil {
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
				switch random.IntN(4) {
				case 0:
					err = s.Write(map[types.UID]*pod.Resources{uid: nil})[uid]
				case 1:
					err = setOne(s, uid, containers("c", "1"))
				default:
					err = setContainer(s, own, "c", cpu(fmt.Sprint(random.IntN(9))))
				}
				if err != nil {
					t.Error(err)
				}
				s.Get(uid)
			}
			if err := setOne(s, own, containers("last", fmt.Sprint(worker))); err != nil {
				t.Error(err)
			}
			if got, ok := s.Get(own); ok && !equality.Semantic.DeepEqual(got, containers("last", fmt.Sprint(worker))) {
				t.Errorf("pod %s has %+v", own, got)
			}
		})
	}
	wg.Wait()
	want := map[types.UID]pod.Resources{}
	for _, uid := range s.UIDs() {
		want[uid], _ = s.Get(uid)
	}
	has(t, open(t, path), want)
}
