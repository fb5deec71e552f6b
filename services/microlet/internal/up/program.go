package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"

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
	err := checkOwner(path, own)
	if err == nil {
		err = local.Check(ctx, path)
	}
	if err != nil {
		log.Warn("microlet-local is not used: all services run from one program", "program", own, logkey.Err, err)
		return p
	}
	p.local = path
	return p
}

// checkOwner refuses what another user has put beside a program, as any user may in a folder such as /tmp. It is to
// belong to root, to the user of this process or to the owner of the program, and so is a link to it.
func checkOwner(path, own string) error {
	allowed := []int{0, os.Geteuid()}
	if info, err := os.Stat(own); err == nil {
		allowed = append(allowed, owner(info))
	}
	for _, look := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} {
		info, err := look(path)
		if err != nil {
			return err
		}
		if uid := owner(info); !slices.Contains(allowed, uid) {
			return fmt.Errorf("%s belongs to the user %d", path, uid)
		}
	}
	return nil
}

// owner is -1 where the file system reports none.
func owner(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// of returns the program of a service, and the one that runs it if that cannot be started.
func (p programs) of(r role.Role) (program, fallback string) {
	if p.local != "" && local.Has(r) {
		return p.local, p.own
	}
	return p.own, ""
}
