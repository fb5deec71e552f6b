package up

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// inotifyInstances is where the kernel bounds how many files one user may watch apart from each other.
	inotifyInstances = "/proc/sys/fs/inotify/max_user_instances"
	// wantInotify is enough for every log that nodeapi may be asked to follow: each takes one. The
	// kernel's own default is 128.
	wantInotify = 1280
)

// raiseInotify lets users watch more files at one time, unless they may already. A host that does not
// let itself be raised only bounds how many logs can be followed.
func raiseInotify(path string, log *slog.Logger) {
	err := func() error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		now, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if now >= wantInotify {
			return nil
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(wantInotify)), 0); err != nil {
			return err
		}
		log.Info("sysctl raised", "sysctl", "fs.inotify.max_user_instances", "from", now, "to", wantInotify)
		return nil
	}()
	if err != nil {
		log.Warn("sysctl not raised; fewer container logs can be followed at one time",
			"sysctl", "fs.inotify.max_user_instances", logkey.Err, err)
	}
}
