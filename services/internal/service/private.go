package service

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/run"
)

// KeepPrivate keeps this process's memory, folders and open files from others of its user: they may not trace it, nor
// look into what /proc has of it, and its end leaves no core. A container that has a service's user and sees the
// host's processes would otherwise reach the node agent's sockets and keys through /proc/<pid>/root. Root
// may still do all of that. Nor do the programs that this one starts inherit what it was started with. KeepPrivate is
// for programs, before they read any secret.
func KeepPrivate() error {
	if err := run.CloseOnExec(); err != nil {
		return fmt.Errorf("keep descriptors from the programs that this one starts: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep the process private: %w", err)
	}
	return nil
}
