package childpool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestASessionHasOneChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s, err := w.Session()
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/a", "/missing", "/b"} {
			if _, err := touch.Do(t.Context(), s, path, path); (err != nil) != (path == "/missing") {
				t.Errorf("%s: %v", path, err)
			}
		}
		if _, err := touch.Do(t.Context(), w, "/c", "/c"); err != nil || w.started != 2 {
			t.Errorf("beside it: %v, %d children: that of the session is its own", err, w.started)
		}
		s.Keep()
		if busy, idle, hung := w.Children(); busy != 0 || idle != 2 || hung != 0 {
			t.Errorf("after it: %d busy, %d idle, %d hung", busy, idle, hung)
		}
		again, err := w.Session()
		if err != nil || w.started != 2 {
			t.Errorf("another: %v, %d children", err, w.started)
		}
		again.End()
		<-again.Ended()
		synctest.Wait()
		if busy, idle, hung := w.Children(); busy != 0 || idle != 1 || hung != 0 {
			t.Errorf("after its end: %d busy, %d idle, %d hung", busy, idle, hung)
		}
		w.end(t)
	})
}

// TestRoom: its caller learns which calls have room beside one that hangs, also if what hangs was mounted just before.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.bounds = Bounds{Children: 2, Quick: 1, Slow: slow, Lane: 1, Foreign: 2, Idle: idleTime}
		w.mounts.list = listOf("/")
		if !w.Room("/hung") {
			t.Error("no room where nothing runs")
		}
		w.mounts.list = listOf("/", "/hung")
		s, err := w.Session()
		if err != nil {
			t.Fatal(err)
		}
		s.Take("/hung")
		if w.Room("/hung") {
			t.Error("room beside a call that is about to run")
		}
		result := make(chan error, 1)
		go func() {
			_, err := touch.Do(t.Context(), s, "/hung", "/hung")
			result <- err
		}()
		synctest.Wait()
		if w.Room("/other") {
			t.Error("room beside a quick call")
		}
		time.Sleep(slow)
		if w.Room("/hung/a") || !w.Room("/other") || s.Lane() != w.Lane("/hung/b") || s.Lane() == w.Lane("/other") {
			t.Errorf("beside a slow call: %v on its file system, %v on another", w.Room("/hung/a"), w.Room("/other"))
		}
		if err := <-result; !errors.Is(err, ErrHangs) {
			t.Error(err)
		}
		other, err := w.Session()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Session(); !errors.Is(err, ErrFull) {
			t.Errorf("a third child: %v", err)
		}
		if w.Room("/hung/a") || !w.Room("/other") {
			t.Error("the child that hangs does not count")
		}
		other.End()
		w.end(t)
	})
}

// TestASessionEndsWithACallThatIsNotWanted: its child may still be busy.
func TestASessionEndsWithACallThatIsNotWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s, err := w.Session()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := touch.Do(ctx, s, "/slow", "/slow"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		<-s.Ended()
		if _, err := touch.Do(t.Context(), s, "/a", "/a"); err == nil || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("a call after its end: %v", err)
		}
		w.end(t)
	})
}
