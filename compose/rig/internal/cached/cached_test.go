package cached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func quiet(string, ...any) {}

func TestFolderIsMadeOnceAndWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	var made atomic.Int32
	var begun sync.WaitGroup
	makeIt := func(half string) error {
		made.Add(1)
		begun.Wait() // the others ask while it is made
		return os.WriteFile(filepath.Join(half, "content"), []byte("whole"), 0o644)
	}
	done := make(chan error, 5)
	begun.Add(cap(done))
	for range cap(done) {
		go func() { begun.Done(); done <- Folder(t.Context(), dir, quiet, makeIt) }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "content")); made.Load() != 1 || string(text) != "whole" {
		t.Errorf("made %d times, content %q, %v, want once", made.Load(), text, err)
	}
}

func TestFolderIsNotThereAfterAFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	broken := errors.New("broken")
	err := Folder(t.Context(), dir, quiet, func(half string) error {
		return errors.Join(os.WriteFile(filepath.Join(half, "content"), nil, 0o644), broken)
	})
	if _, statErr := os.Stat(dir); !errors.Is(err, broken) || !errors.Is(statErr, os.ErrNotExist) {
		t.Errorf("%v, and the folder: %v", err, statErr)
	}
	err = Folder(t.Context(), dir, quiet, func(half string) error {
		if entries, err := os.ReadDir(half); err != nil || len(entries) > 0 {
			return fmt.Errorf("%d files of the failed attempt are there, %w", len(entries), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRunTellsTheEndOfWhatAFailedCommandSaid(t *testing.T) {
	err := Run(t.Context(), Command{Args: []string{"sh", "-c", "seq 100; echo why >&2; exit 3"}}, quiet)
	if err == nil || !strings.HasSuffix(err.Error(), "\n99\n100\nwhy") || strings.Contains(err.Error(), "\n50\n") {
		t.Errorf("error %v", err)
	}
}

// The command's child holds the write end of a pipe, which ends when the last of them is gone.
func TestRunKillsWhatTheCommandStarted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() {
		f, err := os.Open(pipe)
		if err != nil {
			gone <- err
			return
		}
		defer f.Close()
		_, err = f.Read(make([]byte, 1)) // the child runs
		cancel()
		if err == nil {
			_, err = io.Copy(io.Discard, f)
		}
		gone <- err
	}()
	err := Run(ctx, Command{Args: []string{"sh", "-c", `exec 3> "$1"; sleep 3600 & echo runs >&3; wait`, "sh", pipe}},
		quiet)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	select {
	case err := <-gone:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the command's child went on")
	}
}
