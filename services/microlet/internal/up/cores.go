package up

import (
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

// forbidCores keeps this process, and all that it starts, from leaving core files: there are tokens and Secrets in
// their memory.
func forbidCores(log *slog.Logger) {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		log.Warn("a crash may leave a core file, which holds credentials", logkey.Err, err)
	}
}
