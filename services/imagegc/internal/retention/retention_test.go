package retention

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/imagegc/plugin"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// TestMain makes the test's binary a plugin when it is run by a plugin's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "plugin-under-test" {
		plugin.Serve(func(_ context.Context, images []*retentionv1.KeepRequest_Image) ([]string, error) {
			switch images[0].GetId() {
			case "error":
				return nil, errors.New("the policy cannot be read")
			case "crash":
				os.Exit(3)
			case "hang":
				select {}
			case "leaves a process":
				return leave(false)
			case "leaves a session":
				return leave(true)
			}
			if os.Getenv("HOME") != "" {
				return nil, errors.New("it has imagegc's environment")
			}
			return []string{images[0].GetId(), "unknown"}, nil
		})
		return
	}
	os.Exit(m.Run())
}

// stdout and stderr are those of the process. While a plugin serves, os has others.
var stdout, stderr = os.Stdout, os.Stderr

// leave starts a process that has the plugin's output, and returns its number.
func leave(setsid bool) ([]string, error) {
	sleep := exec.Command("/bin/sleep", "300")
	sleep.Stdout, sleep.Stderr = stdout, stderr
	sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
	if err := sleep.Start(); err != nil {
		return nil, err
	}
	return []string{strconv.Itoa(sleep.Process.Pid)}, nil
}

func install(t *testing.T, mode os.FileMode) *Plugin {
	t.Helper()
	t.Setenv("HOME", "/root")
	path := filepath.Join(t.TempDir(), "plugin-under-test")
	proctest.Install(t, path, mode)
	return New(path, "/tmp", slog.New(slog.DiscardHandler))
}

func images(ids ...string) []*retentionv1.KeepRequest_Image {
	var all []*retentionv1.KeepRequest_Image
	for _, id := range ids {
		all = append(all, &retentionv1.KeepRequest_Image{Id: id})
	}
	return all
}

func TestKeep(t *testing.T) {
	p := install(t, 0o755)
	for range 2 { // each time in a process of its own
		kept, err := p.Keep(t.Context(), images("a", "b"))
		if err != nil || !maps.Equal(kept, map[string]bool{"a": true, "unknown": true}) {
			t.Fatalf("kept %v, %v", kept, err)
		}
	}
	if kept, err := New("", "/tmp", p.log).Keep(t.Context(), images("a")); err != nil || kept != nil {
		t.Errorf("without a plugin: %v, %v", kept, err)
	}
}

func TestAPluginThatFailsRemovesNothing(t *testing.T) {
	p := install(t, 0o755)
	for id, want := range map[string]string{"error": "the policy cannot be read", "crash": "image retention plugin"} {
		if _, err := p.Keep(t.Context(), images(id)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := p.Keep(ctx, images("hang")); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("hang: %v", err)
	}
}

// keepWithin fails the test if Keep takes so long that it must have waited for what the plugin has left behind.
func keepWithin(t *testing.T, p *Plugin, id string) (kept map[string]bool, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		kept, err = p.Keep(t.Context(), images(id))
	}()
	select {
	case <-done:
		return kept, err
	case <-time.After(startTimeout + 20*time.Second):
		t.Fatalf("%s: it takes as long as what the plugin has left behind", id)
		return nil, nil
	}
}

// TestWhatAPluginLeavesBehind ends with it, or is out of its reach and holds up nothing.
func TestWhatAPluginLeavesBehind(t *testing.T) {
	p := install(t, 0o755)
	for id, ends := range map[string]bool{"leaves a process": true, "leaves a session": false} {
		kept, err := keepWithin(t, p, id)
		if err != nil || len(kept) != 1 {
			t.Errorf("%s: kept %v, %v", id, kept, err)
		}
		for k := range kept {
			pid, err := strconv.Atoi(k)
			if err != nil {
				t.Fatal(err)
			}
			if ends {
				proctest.Await(t, 30*time.Second, "its end", func() bool { return !proctest.Alive(pid) })
			} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Errorf("%s: %v, so this test shows nothing", id, err)
			}
		}
	}
}

// TestAScriptThatLeavesAProcessBehind is no plugin at all.
func TestAScriptThatLeavesAProcessBehind(t *testing.T) {
	p := install(t, 0o755)
	if err := os.WriteFile(p.path, []byte("#!/bin/sh\n/bin/sleep 300 &\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := keepWithin(t, p, "a"); err == nil || !strings.Contains(err.Error(), "it does not start") {
		t.Errorf("kept with %v", err)
	}
}

// TestGivingUp: at most one goroutine waits for a plugin that the kernel keeps.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New("/plugin", "/tmp", slog.New(slog.DiscardHandler))
		began, goes := time.Now(), make(chan struct{})
		hang := func() ([]string, error) { <-goes; return nil, nil }
		for range 3 {
			if _, err := p.await(hang); err == nil || time.Since(began) != patience {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		}
		close(goes)
		synctest.Wait()
		ids, err := p.await(func() ([]string, error) { return []string{"a"}, nil })
		if err != nil || !slices.Equal(ids, []string{"a"}) {
			t.Errorf("when it goes again: %v, %v", ids, err)
		}
	})
}

func TestAFileThatIsNotRun(t *testing.T) {
	for _, mode := range []os.FileMode{0o777, 0o644} {
		if _, err := install(t, mode).Keep(t.Context(), images("a")); err == nil ||
			!strings.Contains(err.Error(), "is not run") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	p := New(filepath.Join(t.TempDir(), "absent"), "/tmp", slog.New(slog.DiscardHandler))
	if _, err := p.Keep(t.Context(), images("a")); err == nil || !strings.Contains(err.Error(), "is not installed") {
		t.Errorf("absent: %v", err)
	}
}
