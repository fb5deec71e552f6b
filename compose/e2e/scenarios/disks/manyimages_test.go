//go:build long

package disks

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

const (
	manyImages = 500
	batch      = 100 // images of one age
	// full, high and low are percentages of the filesystem: what the test makes of it, and the kubelet's thresholds.
	full, high, low = 90, 85, 80
	// kills of imagegc while it collects.
	kills = 12
)

// TestManyImages fills the images' filesystem with 500 images of five ages, and kills imagegc again and again while it
// frees space and pods start from images of all ages. No pod fails for an image that was removed, older images go
// before younger ones, the ages survive, and in the end the filesystem is at the low threshold.
func TestManyImages(t *testing.T) {
	s := scene.New(t)
	// By the default thresholds evictor would see to the filesystem at once, and keep pods away from the node.
	s.UseMicrolet(t, "--minimum-image-ttl-duration=0s", "--eviction-hard=imagefs.available<1%")
	pushImages(t, s, manyImages)
	ids, detected := map[int]string{}, map[string]age{}
	for from := 0; from < manyImages; from += batch {
		maps.Copy(ids, pullImages(t, s, from, from+batch))
		restartImageGC(s)
		scene.Await(t, scene.Patience, "the detection of a batch", func() error {
			ages := recordedAges(t, s)
			for n := from; n < from+batch; n++ {
				a, ok := ages[ids[n]]
				if !ok {
					return fmt.Errorf("%s is not known", imageName(n))
				}
				detected[ids[n]] = a
			}
			return nil
		})
	}
	s.CreatePods(imagePod("oldest", 0))
	s.WaitReady(scene.Patience, "oldest")
	used := map[int]bool{0: true}

	t.Logf("%d images take %.1f %% of the filesystem", manyImages, usedPercent(t, s))
	fill(t, s, full)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range kills {
		restartImageGC(s)
		// Half of a collection of many images takes less than this.
		n := random.IntN(manyImages)
		used[n] = true
		name := fmt.Sprintf("pod-%d", round)
		s.CreatePods(imagePod(name, n))
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		if usedPercent(t, s) < high {
			fill(t, s, full)
		}
	}
	var names []string
	for round := range kills {
		names = append(names, fmt.Sprintf("pod-%d", round))
	}
	s.WaitReady(scene.Patience, names...)
	fill(t, s, full)
	restartImageGC(s)
	scene.Await(t, scene.Patience, "the low threshold", func() error {
		if got := usedPercent(t, s); got > low {
			return fmt.Errorf("the filesystem is %.1f %% full", got)
		}
		return nil
	})
	for _, name := range append(names, "oldest") {
		noFailedImage(s, name)
	}
	left := judgeOrder(t, s, ids, used)
	judgeAges(t, s, detected, ids, used)
	t.Logf("%d of %d images are left, in a filesystem that is %.1f %% full", left, manyImages, usedPercent(t, s))
	if left < manyImages/10 {
		t.Errorf("no more than %d images are left: more was removed than the space that was wanted", left)
	}
	s.DeletePods(append(names, "oldest")...)
}

// restartImageGC kills imagegc, which looks at the images when it begins.
func restartImageGC(s *scene.Scene) {
	s.T.Helper()
	s.Signal(s.T, syscall.SIGKILL, role.ImageGC)
	s.WaitHealthy(s.T, scene.Patience)
}

// imagePod is a pod that runs one of the images.
func imagePod(name string, n int) *corev1.Pod {
	p := scene.PausePod(name)
	p.Spec.Containers[0].Image = imageName(n)
	return p
}

// noFailedImage fails the test if a pod had to try again.
func noFailedImage(s *scene.Scene, name string) {
	s.T.Helper()
	_ = s.WaitErr(time.Second, func(v record.View) error {
		for _, e := range v.Events(s.Namespace, name) {
			if e.Type == corev1.EventTypeWarning {
				s.T.Errorf("pod %s: %s: %s", name, e.Reason, e.Message)
			}
		}
		return nil
	})
}

// judgeOrder fails the test if a younger image went before an older one, of those that no pod used, or if one that
// a pod uses went. It returns how many are left.
func judgeOrder(t *testing.T, s *scene.Scene, ids map[int]string, used map[int]bool) (left int) {
	t.Helper()
	there := present(t, s)
	oldestLeft, youngestGone := manyImages, -1
	for n, id := range ids {
		switch {
		case there[id]:
			left++
			if !used[n] {
				oldestLeft = min(oldestLeft, n/batch)
			}
		case used[n]:
			t.Errorf("%s is removed while a pod uses it", imageName(n))
		default:
			youngestGone = max(youngestGone, n/batch)
		}
	}
	if youngestGone < 0 || youngestGone > oldestLeft {
		t.Errorf("of batch %d there are some left while some of batch %d are gone", oldestLeft, youngestGone)
	}
	return left
}

// judgeAges fails the test if an image that is left has another age than when it was detected, or if one is known as
// used that no pod used, or the other way round.
func judgeAges(t *testing.T, s *scene.Scene, detected map[string]age, ids map[int]string, used map[int]bool) {
	t.Helper()
	there, ages := present(t, s), recordedAges(t, s)
	for _, n := range slices.Sorted(maps.Keys(ids)) {
		if !there[ids[n]] {
			continue
		}
		got, ok := ages[ids[n]]
		if !ok {
			t.Errorf("the age of %s is lost", imageName(n))
			continue
		}
		if (got.LastUsed != nil) != used[n] {
			t.Errorf("%s: recorded as used at %v, want used: %v", imageName(n), got.LastUsed, used[n])
		}
		if want := detected[ids[n]].Detected; !used[n] && got.Detected != want {
			t.Errorf("%s was detected at %v, and is recorded with %v", imageName(n), want, got.Detected)
		}
	}
}
