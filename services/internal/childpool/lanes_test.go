package childpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFileSystemThatHangsLeavesChildrenToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mounts.list = listOf("/", "/hung")
		var all sync.WaitGroup
		for i := range 2 * maxChildren {
			all.Go(func() {
				path := fmt.Sprintf("/hung/%d", i)
				if _, err := touch.Do(t.Context(), w, path, path); err == nil {
					t.Errorf("%s has answered", path)
				}
			})
		}
		time.Sleep(3 * DefaultPatience)
		_, _, hung := w.Children()
		if hung != perFileSystem {
			t.Errorf("%d children hang", hung)
		}
		if _, err := touch.Do(t.Context(), w, "/other", "/other"); err != nil {
			t.Errorf("another file system: %v", err)
		}
		began := time.Now()
		_, err := touch.Do(t.Context(), w, "/hung/another", "/hung/another")
		want := "other calls on the file system at /hung do not answer: waited for them in vain"
		if err == nil || !strings.HasSuffix(err.Error(), want) || time.Since(began) != DefaultPatience {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		all.Wait()
		w.end(t)
	})
}

// A path that leads over a link to what hangs counts as one of the node's own file system, since the pool follows no
// link. Other calls there go on beside a few of those.
func TestLinksToWhatHangsHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNode(t)
		w.mounts.list = listOf("/")
		var all sync.WaitGroup
		for i := range perFileSystem - 1 {
			all.Go(func() {
				path := fmt.Sprintf("/hung/link-%d", i)
				if _, err := touch.Do(t.Context(), w, path, path); err == nil {
					t.Errorf("%s has answered", path)
				}
			})
		}
		for range 3 { // while they are under way, while their children are killed, and when those hang
			time.Sleep(2 * slow)
			began := time.Now()
			if _, err := touch.Do(t.Context(), w, "/var/lib/pod", "/var/lib/pod"); err != nil || time.Since(began) > 0 {
				t.Errorf("another path: %v after %s", err, time.Since(began))
			}
			time.Sleep(DefaultPatience)
		}
		all.Wait()
		w.end(t)
	})
}

// One pod can name as many servers as it likes, and none of them answers.
func TestServersThatHangLeaveChildrenToTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.own = []string{"/", "/var/lib"}
		w.mounts.list = listOf("/", "/var/lib")
		var all sync.WaitGroup
		for i := range 2 * maxChildren {
			all.Go(func() {
				if _, err := touch.Do(t.Context(), w, fmt.Sprintf("server-%d:/export", i), fmt.Sprintf("/hung/%d", i)); err == nil {
					t.Errorf("server-%d has answered", i)
				}
			})
		}
		time.Sleep(DefaultPatience / 2)
		began := time.Now()
		for _, path := range []string{"/etc", "/var/lib/pod"} {
			if _, err := touch.Do(t.Context(), w, path, path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if took := time.Since(began); took > slow {
			t.Errorf("the node's own file systems took %s", took)
		}
		time.Sleep(3 * DefaultPatience)
		_, _, hung := w.Children()
		if hung != maxForeign {
			t.Errorf("%d children hang", hung)
		}
		all.Wait()
		w.end(t)
	})
}

// What is unmounted is not on the list of mounts any more when the kernel still waits for its server.
func TestUnmountsThatHangLeaveChildrenToTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.own = []string{"/"}
		w.mounts.list = listOf("/")
		var all sync.WaitGroup
		var mu sync.Mutex
		done := 0
		for i := range 2 * maxChildren {
			all.Go(func() {
				path, server := fmt.Sprintf("/left/%d", i), fmt.Sprintf("server-%d", i)
				if _, err := touch.DoOn(t.Context(), w, server, path, path); err == nil {
					mu.Lock()
					done++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if _, _, hung := w.Children(); done != maxForeign || hung != maxForeign {
			t.Errorf("%d are unmounted, and %d children hang", done, hung)
		}
		began := time.Now()
		if _, err := touch.Do(t.Context(), w, "/etc", "/etc"); err != nil || time.Since(began) > slow {
			t.Errorf("the node's own file system: %v after %s", err, time.Since(began))
		}
		w.end(t)
	})
}

// What an earlier process has left behind counts among the foreign until it ends.
func TestWhatIsLeftBehindTakesNoChildFromTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worldAfter(t, maxForeign)
		w.own = []string{"/"}
		w.mounts.list = listOf("/", "/hung")
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { _, _ = touch.Do(t.Context(), w, "/hung/a", "/hung/a") })
			all.Go(func() { _, _ = touch.Do(t.Context(), w, "/hung/b", "/hung/b") })
		}
		time.Sleep(DefaultPatience / 2)
		w.mu.Lock()
		if w.started != 1 {
			t.Errorf("%d children beside those that are left", w.started)
		}
		w.before = 0
		w.mu.Unlock()
		time.Sleep(2 * DefaultPatience)
		if _, err := touch.Do(t.Context(), w, "server:/export", "/quick"); err != nil {
			t.Errorf("after those that were left have ended: %v", err)
		}
		all.Wait()
		w.end(t)
	})
}

func TestCallsBeyondTheShareOfAFileSystemWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mounts.list = listOf("/", "/slow")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range perFileSystem {
			all.Go(func() {
				path := fmt.Sprintf("/slow/%d", i)
				if _, err := touch.Do(ctx, w, path, path); err == nil {
					t.Errorf("%s has answered", path)
				}
			})
		}
		time.Sleep(2 * slow)
		next := make(chan error, 1)
		go func() {
			_, err := touch.Do(t.Context(), w, "/slow/../slow", "/quick")
			next <- err
		}()
		synctest.Wait()
		select {
		case err := <-next:
			t.Fatalf("beside the others: %v", err)
		default:
		}
		cancel()
		if err := <-next; err != nil {
			t.Errorf("after the others: %v", err)
		}
		all.Wait()
		w.end(t)
	})
}

func TestWithoutTheListOfMountsCallsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.mounts.list = func() (MountPoints, error) { return nil, errors.New("no list") }
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range perFileSystem {
			all.Go(func() { _, _ = touch.Do(ctx, w, fmt.Sprintf("/slow/%d", i), "/slow") })
		}
		time.Sleep(2 * slow)
		if _, err := touch.Do(t.Context(), w, "/quick", "/quick"); err != nil {
			t.Error(err)
		}
		cancel()
		all.Wait()
		w.end(t)
	})
}

// A device that hangs has one lane, however many of its folders are mounted, such as the subPaths of a volume.
func TestADeviceHasOneLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNode(t)
		hung := MountPoints{"/": {Major: 8}}
		for i := range 2 * perFileSystem {
			hung[fmt.Sprintf("/hung/%d", i)] = Lane{Minor: 50}
		}
		w.mounts.list = func() (MountPoints, error) { return hung, nil }
		var all sync.WaitGroup
		for i := range 2 * perFileSystem {
			all.Go(func() {
				path := fmt.Sprintf("/hung/%d/file", i)
				if _, err := touch.Do(t.Context(), w, path, path); err == nil {
					t.Errorf("%s has answered", path)
				}
			})
		}
		all.Wait()
		if _, _, n := w.Children(); n != perFileSystem {
			t.Errorf("%d children hang", n)
		}
		w.end(t)
	})
}

// What is unmounted lazily is not on the list any more, and hangs all the same: not in the lane of the folder that had
// it.
func TestWhatHungStaysInItsLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNode(t)
		w.mounts.list = listOf("/", "/hung")
		var all sync.WaitGroup
		for i := range perFileSystem {
			all.Go(func() {
				path := fmt.Sprintf("/hung/%d", i)
				if _, err := touch.Do(t.Context(), w, path, path); err == nil {
					t.Errorf("%s has answered", path)
				}
			})
		}
		time.Sleep(2 * slow)
		w.Pool.mu.Lock()
		w.mounts.list = listOf("/")
		w.Pool.mu.Unlock()
		time.Sleep(2 * slow)
		began := time.Now()
		if _, err := touch.Do(t.Context(), w, "/etc", "/etc"); err != nil || time.Since(began) > 0 {
			t.Errorf("the node's own file system: %v after %s", err, time.Since(began))
		}
		all.Wait()
		w.end(t)
	})
}
