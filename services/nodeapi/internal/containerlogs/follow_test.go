package containerlogs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// gathering is a writer that shows what it has when the test says so.
type gathering struct {
	strings.Builder
	rounds chan string
	err    error
}

func (g *gathering) CaughtUp() (bool, error) {
	if g.Len() == 0 {
		return false, g.err
	}
	g.rounds <- g.String()
	g.Reset()
	return true, g.err
}

// lives is a container that ends when the test says so.
type lives struct {
	path  string
	ended atomic.Bool
}

func (r *lives) Status(context.Context, string) (*runtimeapi.ContainerStatusResponse, error) {
	s := &runtimeapi.ContainerStatus{LogPath: r.path, State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	if r.ended.Load() {
		s.State = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return &runtimeapi.ContainerStatusResponse{Status: s}, nil
}

func TestFollowerIsToldOfEachRound(t *testing.T) {
	folder := t.TempDir()
	r := &lives{path: filepath.Join(folder, "0.log")}
	file, err := os.Create(r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	add := func(lines ...string) {
		t.Helper()
		var text strings.Builder
		for _, line := range lines {
			text.WriteString("2026-01-01T00:00:00.000000000Z stdout F " + line + "\n")
		}
		if _, err := file.WriteString(text.String()); err != nil {
			t.Fatal(err)
		}
	}
	add("one", "two")
	out := &gathering{rounds: make(chan string)}
	done := make(chan error)
	go func() {
		done <- (&Reader{Runtime: r, Folder: folder}).Read(t.Context(), abc, &v1.PodLogOptions{Follow: true}, out,
			out)
	}()
	for _, want := range []string{"one\ntwo\n", "three\n", "four\nfive\n"} {
		select {
		case got := <-out.rounds:
			if got != want {
				t.Errorf("a round brought %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q is not shown", want)
		}
		switch want {
		case "one\ntwo\n":
			add("three")
		case "three\n":
			add("four", "five")
		default:
			r.ended.Store(true)
			add("six")
		}
	}
	for open := true; open; {
		select {
		case <-out.rounds: // it may be in a round of its own
		case err := <-done:
			open = false
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the container has ended, and its log is still followed")
		}
	}
}

// TestRounds holds the rounds that bring something to their pace, whatever the log does, and no others.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gathering{rounds: make(chan string, 100)}
		r := &Reader{Runtime: &lives{}}
		s := &state{reader: r, id: "abc", followers: followers(g, nil, g)}
		if len(s.followers) != 1 {
			t.Errorf("%d followers, want one", len(s.followers))
		}
		round := func(ctx context.Context, lines string) error {
			g.WriteString(lines)
			_, err := s.running(ctx)
			return err
		}
		if err := round(t.Context(), "one"); err != nil { // it ends on a round's beginning
			t.Error(err)
		}
		began := time.Now()
		for range 10 {
			if err := round(t.Context(), "another"); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 10*roundPause || r.busy.Load() != 1 {
			t.Errorf("ten rounds take %s, and %d are busy", took, r.busy.Load())
		}
		began = time.Now()
		if err := round(t.Context(), ""); err != nil || time.Since(began) != 0 || r.busy.Load() != 0 {
			t.Errorf("a round that brings nothing: %v after %s, and %d are busy", err, time.Since(began), r.busy.Load())
		}
		ctx, cancel := context.WithTimeout(t.Context(), roundPause/2)
		defer cancel()
		if err := round(ctx, "more"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != roundPause/2 {
			t.Errorf("a round that is broken off: %v after %s", err, time.Since(began))
		}
		g.err = errors.New("gone")
		if err := round(t.Context(), ""); !errors.Is(err, g.err) {
			t.Errorf("who has gone is served on: %v", err)
		}
	})
}

// TestManyFollowersShareRounds holds all followers together to their pace, and wakes them together.
func TestManyFollowersShareRounds(t *testing.T) {
	for _, c := range []struct {
		busy int64
		want time.Duration
	}{{0, roundPause}, {1, roundPause}, {50, roundPause}, {51, 2 * roundPause}, {200, 4 * roundPause},
		{1000, 2 * time.Second}, {10_000, maxPause}} {
		r := &Reader{}
		r.busy.Add(c.busy)
		round := time.Unix(1_000_000, 0).Add(-phase)
		if got := r.untilRound(round); got != c.want {
			t.Errorf("%d followers wait %s from one round to the next, want %s", c.busy, got, c.want)
		}
		late := round.Add(c.want - time.Millisecond)
		if got := r.untilRound(late); got != time.Millisecond {
			t.Errorf("%d followers: who has read a millisecond before the others' next round waits %s for it", c.busy,
				got)
		}
	}
}

// TestBusyFollowersAreCounted counts who has something to read, until he has nothing or goes.
func TestBusyFollowersAreCounted(t *testing.T) {
	folder := t.TempDir()
	running := &lives{path: filepath.Join(folder, "0.log")}
	if err := os.WriteFile(running.path, []byte("2026-01-01T00:00:00.000000000Z stdout F one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Reader{Runtime: running, Folder: folder}
	for _, quiet := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		out, done := &gathering{rounds: make(chan string)}, make(chan error)
		go func() { done <- r.Read(ctx, abc, &v1.PodLogOptions{Follow: true}, out, out) }()
		<-out.rounds
		proctest.Await(t, 10*time.Second, "one to be busy", func() bool { return r.busy.Load() == 1 })
		if quiet {
			proctest.Await(t, 10*time.Second, "none to be busy", func() bool { return r.busy.Load() == 0 })
		}
		cancel()
		<-done
		if n := r.busy.Load(); n != 0 {
			t.Errorf("%d are busy after the last reader has gone, want none", n)
		}
	}
}
