package up

import (
	"bytes"
	"errors"
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

// A folder may be one that all users can write to. What another user has put there is not run.
func TestAProgramOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it gives files to other users")
	}
	const developer, stranger = 1000, 2000
	version := "#!/bin/sh\necho " + local.Program + " version " + telemetry.Version + "\n"
	for name, c := range map[string]struct {
		owner, link int // of microlet-local, and of the link to it if it is one
		used        bool
	}{
		"root":                   {owner: 0, used: true},
		"owner of microlet":      {owner: developer, used: true},
		"another user":           {owner: stranger},
		"link of the owner":      {owner: 0, link: developer, used: true},
		"link of another user":   {owner: 0, link: stranger},
		"link to another user's": {owner: stranger, link: developer},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			own, other := filepath.Join(dir, "microlet"), filepath.Join(dir, local.Program)
			file := other
			if c.link != 0 {
				file = filepath.Join(dir, "file")
				if err := errors.Join(os.Symlink(file, other), os.Lchown(other, c.link, 0)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.WriteFile(own, nil, 0o600), os.Chown(own, developer, 0),
				os.WriteFile(file, []byte(version), 0o700), os.Chown(file, c.owner, 0)); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			p := findPrograms(t.Context(), own, slog.New(slog.NewTextHandler(&log, nil)))
			if used := p.local != ""; used != c.used || used == strings.Contains(log.String(), "belongs to the user 2000") {
				t.Errorf("used: %v, want %v; log: %s", used, c.used, &log)
			}
		})
	}
}
