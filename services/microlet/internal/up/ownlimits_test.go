package up

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// TestOwnLimits: a program that is started after them has the limits.
func TestOwnLimits(t *testing.T) {
	const inChild = "MICROLET_TEST_OWN_LIMITS"
	if os.Getenv(inChild) != "" { // the limits cannot be taken back
		k := kubeletconfig.Default()
		k.OOMScoreAdj, k.MaxOpenFiles = ptr.To[int32](321), 123
		setOwnLimits(&k, slog.Default())
		show := exec.Command("sh", "-c", "ulimit -Sn; ulimit -Hn; cat /proc/self/oom_score_adj")
		show.Stdout, show.Stderr = os.Stderr, os.Stderr
		if err := show.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	self := exec.Command(os.Args[0], "-test.run=^TestOwnLimits$")
	self.Env = append(os.Environ(), inChild+"=1")
	var text strings.Builder
	self.Stderr = &text
	if err := self.Run(); err != nil || text.String() != "123\n123\n321\n" {
		t.Errorf("%q, %v", &text, err)
	}
}
