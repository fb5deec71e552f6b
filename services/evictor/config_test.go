package evictor

import (
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// stats measures logs each minute where it measures no volumes, so a figure of a minute ago still counts.
func TestFiguresOfLogsCountWithoutThoseOfVolumes(t *testing.T) {
	for period, want := range map[time.Duration]time.Duration{
		-time.Second:    2*time.Minute + storageSlack,
		2 * time.Minute: 4*time.Minute + storageSlack,
	} {
		k := kubeletconfig.Default()
		k.VolumeStatsAggPeriod.Duration = period
		c := &Config{Kubelet: &kubeletconfig.Config{Kubelet: k}}
		if got := c.localStorage().MaxAge; got != want {
			t.Errorf("with a volumeStatsAggPeriod of %s figures count for %s, want %s", period, got, want)
		}
	}
}
