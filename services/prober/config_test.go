package prober

import (
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// podsync gives no pods to a replica with another name, so that such a prober would run in vain.
func TestReplicasAreNumbered(t *testing.T) {
	for replica, valid := range map[string]bool{"0": true, "15": true, "auto": true, "16": false, "blue": false} {
		cfg := DefaultConfig()
		cfg.Kubelet, cfg.Service.NodeName, cfg.Service.Replica = &kubeletconfig.Config{}, "n", replica
		if err := cfg.Validate(); (err == nil) != valid || err != nil && !strings.Contains(err.Error(), `"`+replica+`"`) {
			t.Errorf("%q: %v", replica, err)
		}
	}
}
