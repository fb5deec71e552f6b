package lockfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const patience = time.Minute

func acquire(t *testing.T, path string, watch bool) *Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := Acquire(ctx, path, watch, func() { t.Error("it waits") })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rival opens the file as upstream's kubelet does, and waits for its lock.
func rival(t *testing.T, path string) (*os.File, <-chan error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	return f, locked
}

func within(t *testing.T, what string, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatalf("not within %s: %s", patience, what)
		return nil
	}
}

func contended(ctx context.Context, l *Lock) <-chan error {
	c := make(chan error, 1)
	go func() { c <- l.Contended(ctx) }()
	return c
}

// TestTheLockChangesHands: the one who opens the file gets the lock, and the first one waits until it is free again.
func TestTheLockChangesHands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.lock")
	l := acquire(t, path, true)
	reported := contended(t.Context(), l)
	f, locked := rival(t, path)
	if err := within(t, "contention", reported); !errors.Is(err, ErrContended) {
		t.Errorf("Contended() = %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if err := within(t, "the other one's lock", locked); err != nil {
		t.Fatal(err)
	}

	waits, again := make(chan error, 1), make(chan error, 1)
	go func() {
		l, err := Acquire(t.Context(), path, false, func() { waits <- nil })
		if err == nil {
			err = l.Release()
		}
		again <- err
	}()
	_ = within(t, "waiting", waits)
	select {
	case err := <-again:
		t.Fatalf("got the lock that another one holds: %v", err)
	default:
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the lock again", again); err != nil {
		t.Error(err)
	}
}

func TestRemovalIsContention(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.lock")
	l := acquire(t, path, true)
	reported := contended(t.Context(), l)
	if err := os.Chmod(path, 0o640); err != nil { // no process claims the lock by this
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "contention", reported); !errors.Is(err, ErrContended) {
		t.Errorf("Contended() = %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

func TestWaitingEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.lock")
	l := acquire(t, path, true)
	ctx, cancel := context.WithCancel(t.Context())
	reported := contended(ctx, l)
	cancel()
	if err := within(t, "the end of the watch", reported); err != nil {
		t.Errorf("Contended() = %v after the end of its context", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	_, err := Acquire(ctx, path, false, cancel)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), path) {
		t.Errorf("Acquire() = %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

func TestNoFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		fifo: "no regular file", t.TempDir(): "is a directory", "/nowhere/kubelet.lock": "no such file",
	} {
		if _, err := Acquire(t.Context(), path, false, func() {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Acquire(%s) = %v, want %q", path, err, want)
		}
	}
}
