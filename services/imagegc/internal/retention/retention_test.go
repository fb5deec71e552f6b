package retention

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func install(t *testing.T, mode os.FileMode) *Plugin {
	t.Helper()
	t.Setenv("HOME", "/root")
	path := filepath.Join(t.TempDir(), "plugin-under-test")
	proctest.Install(t, path, mode)
	return New(path, slog.New(slog.DiscardHandler))
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
	if kept, err := New("", p.log).Keep(t.Context(), images("a")); err != nil || kept != nil {
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

func TestAFileThatIsNotRun(t *testing.T) {
	for _, mode := range []os.FileMode{0o777, 0o644} {
		if _, err := install(t, mode).Keep(t.Context(), images("a")); err == nil ||
			!strings.Contains(err.Error(), "is not run") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	p := New(filepath.Join(t.TempDir(), "absent"), slog.New(slog.DiscardHandler))
	if _, err := p.Keep(t.Context(), images("a")); err == nil || !strings.Contains(err.Error(), "is not installed") {
		t.Errorf("absent: %v", err)
	}
}
