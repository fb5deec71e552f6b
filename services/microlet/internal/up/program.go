package up

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/microlet/internal/local"
)

// programs are what services run from.
type programs struct {
	own string
	// local is microlet-local; empty if it is not there, or not of the same version.
	local string
}

// findPrograms looks for microlet-local beside a program.
func findPrograms(ctx context.Context, own string, log *slog.Logger) programs {
	p := programs{own: own}
	path := filepath.Join(filepath.Dir(own), local.Program)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		log.Info("all services run from one program", "program", own)
		return p
	}
	if err := local.Check(ctx, path); err != nil {
		log.Warn("microlet-local is not used: all services run from one program", "program", own, logkey.Err, err)
		return p
	}
	p.local = path
	return p
}

// of returns the program of a service, and the one that runs it if that cannot be started.
func (p programs) of(r role.Role) (program, fallback string) {
	if p.local != "" && local.Has(r) {
		return p.local, p.own
	}
	return p.own, ""
}
