package userns

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// Configured reads which pods have which user IDs, as many for each pod as the configuration says.
func Configured(ctx context.Context, config *kubeletconfig.Config, runtime Runtime, log *slog.Logger) (*Manager,
	error) {
	k := &config.Kubelet
	perPod := uint32(Unit)
	if of := k.UserNamespaces; of != nil && of.IDsPerPod != nil {
		perPod = uint32(*of.IDsPerPod) // which was validated
	}
	return New(ctx, Options{
		PodsDir: filepath.Join(config.Node.RootDir, "pods"), IDsPerPod: perPod, MaxPods: int(k.MaxPods),
		Host: Machine{}, Runtime: runtime, Log: log,
	})
}
