package up

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Upstream's suite of the node looks for these words in the agent's log.
func TestTheLogHasTheEffectiveConfiguration(t *testing.T) {
	k := &kubeletconfig.Config{Kubelet: kubeletconfig.Default()}
	k.Kubelet.APIVersion, k.Kubelet.Kind = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	k.Kubelet.EventBurst = 101
	k.Kubelet.StaticPodURLHeader = map[string][]string{"Authorization": {"s3cr3t"}}
	var log bytes.Buffer
	c := Config{Kubelet: k}
	if err := c.logConfiguration(slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Effective KubeletConfiguration", "kind: KubeletConfiguration", "eventBurst: 101"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in %s", want, &log)
		}
	}
	if strings.Contains(log.String(), "s3cr3t") {
		t.Errorf("a secret is in %s", &log)
	}
}
