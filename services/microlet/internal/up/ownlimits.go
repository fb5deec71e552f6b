package up

import (
	"log/slog"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// ownScore is where the kernel has the adjustment of this process's score: who has a low one is killed late.
const ownScore = "/proc/self/oom_score_adj"

// setOwnLimits sets oomScoreAdj and maxOpenFiles of this process, and so of all that it starts. The node agent runs
// without them too.
func setOwnLimits(k *kubeletv1beta1.KubeletConfiguration, log *slog.Logger) {
	if k.OOMScoreAdj != nil {
		score := strconv.Itoa(int(*k.OOMScoreAdj))
		if err := os.WriteFile(ownScore, []byte(score), 0); err != nil {
			log.Warn("score of the OOM killer not set", logkey.Field, "oomScoreAdj", "value", score, logkey.Err, err)
		}
	}
	files := uint64(k.MaxOpenFiles)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
		log.Warn("number of open files not set", logkey.Field, "maxOpenFiles", "value", files, logkey.Err, err)
	}
}
