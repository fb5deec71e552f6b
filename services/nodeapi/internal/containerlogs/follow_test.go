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
)

// gathering is a writer that shows what it has when it is told to.
type gathering struct {
	strings.Builder
	rounds chan string
	err    error
}

func (g *gathering) CaughtUp() error {
	if g.Len() > 0 {
		g.rounds <- g.String()
		g.Reset()
	}
	return g.err
}

// lives is a container that ends when it is told to.
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
		done <- (&Reader{Runtime: r, Folder: folder}).Read(t.Context(), "r://abc", &v1.PodLogOptions{Follow: true}, out, out)
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

// TestRounds holds the rounds to their pace, whatever the log does.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gathering{}
		s := statusOnly{reader: &Reader{Runtime: &lives{}}, followers: followers(g, nil, g)}
		if len(s.followers) != 1 {
			t.Errorf("%d followers, want one", len(s.followers))
		}
		began := time.Now()
		for range 10 {
			if _, err := s.ContainerStatus(t.Context(), "abc", false); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 10*roundPause {
			t.Errorf("ten rounds take %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), roundPause/2)
		defer cancel()
		if _, err := s.ContainerStatus(ctx, "abc", false); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*roundPause+roundPause/2 {
			t.Errorf("a round that is broken off: %v after %s", err, time.Since(began))
		}
		g.err = errors.New("gone")
		if _, err := s.ContainerStatus(t.Context(), "abc", false); !errors.Is(err, g.err) {
			t.Errorf("who has gone is served on: %v", err)
		}
	})
}

// TestManyFollowersShareRounds holds all followers together to their pace, and wakes them together.
func TestManyFollowersShareRounds(t *testing.T) {
	for _, c := range []struct {
		following int64
		want      time.Duration
	}{{0, roundPause}, {1, roundPause}, {50, roundPause}, {51, 2 * roundPause}, {200, 4 * roundPause}, {10_000, maxPause}} {
		r := &Reader{}
		r.following.Add(c.following)
		round := time.Unix(1_000_000, 0)
		if got := r.untilRound(round); got != c.want {
			t.Errorf("%d followers wait %s from one round to the next, want %s", c.following, got, c.want)
		}
		late := round.Add(c.want - time.Millisecond)
		if got := r.untilRound(late); got != time.Millisecond {
			t.Errorf("%d followers: who has read a millisecond before the others' next round waits %s for it", c.following, got)
		}
	}
}

func TestFollowersAreCounted(t *testing.T) {
	folder := t.TempDir()
	running := &lives{path: filepath.Join(folder, "0.log")}
	if err := os.WriteFile(running.path, []byte("2026-01-01T00:00:00.000000000Z stdout F one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Reader{Runtime: running, Folder: folder}
	ctx, cancel := context.WithCancel(t.Context())
	out, done := &gathering{rounds: make(chan string)}, make(chan error)
	go func() { done <- r.Read(ctx, "r://abc", &v1.PodLogOptions{Follow: true}, out, out) }()
	<-out.rounds
	if n := r.following.Load(); n != 1 {
		t.Errorf("%d logs are followed, want 1", n)
	}
	if err := r.Read(ctx, "r://abc", &v1.PodLogOptions{}, &strings.Builder{}, nil); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
	if n := r.following.Load(); n != 0 {
		t.Errorf("%d logs are followed after the last reader has gone, want none", n)
	}
}
