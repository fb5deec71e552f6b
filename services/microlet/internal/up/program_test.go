package up

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/microlet/internal/local"
)

func TestPrograms(t *testing.T) {
	version := "echo " + local.Program + " version " + telemetry.Version
	for name, c := range map[string]struct {
		script string // of microlet-local; none if empty
		local  bool
		log    string
	}{
		"absent":          {"", false, "all services run from one program"},
		"same version":    {version, true, ""},
		"another version": {version + ".1", false, "is of another version"},
		"fails":           {version + "; exit 1", false, "is not used"},
		"hangs up":        {"kill -KILL $$", false, "is not used"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			own, other := filepath.Join(dir, "microlet"), filepath.Join(dir, local.Program)
			if c.script != "" {
				if err := os.WriteFile(other, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			p := findPrograms(t.Context(), own, slog.New(slog.NewTextHandler(&log, nil)))
			if !strings.Contains(log.String(), c.log) || c.log == "" && log.Len() > 0 {
				t.Errorf("log: %s", log.String())
			}
			path, fallback := p.of(role.Evictor)
			want, wantFallback := own, ""
			if c.local {
				want, wantFallback = other, own
			}
			if path != want || fallback != wantFallback {
				t.Errorf("evictor runs from %q, else from %q", path, fallback)
			}
			if path, fallback := p.of(role.Podsync); path != own || fallback != "" {
				t.Errorf("podsync runs from %q, else from %q", path, fallback)
			}
		})
	}
}
