package images

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/credentialplugin"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/pullrecords"
)

// Options of Images.
type Options struct {
	Kubelet *kubeletconfig.Config
	Runtime interface {
		Runtime
		Present
	}
	Secrets Secrets
	// Accounts are the service accounts that credential plugins get tokens of.
	Accounts credentialplugin.Accounts
	// NeedsUser reports whether admission needs the user of a pod's images.
	NeedsUser func(p *v1.Pod) bool
	Events    record.EventRecorder
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// New returns Images that are pulled and verified as the configuration says.
func New(o Options) (*Images, error) {
	k := &o.Kubelet.Kubelet
	plugins, err := o.newPlugins()
	if err != nil {
		return nil, err
	}
	records, err := o.newRecords()
	if err != nil {
		return nil, err
	}
	puller, err := newPuller(pullerOptions{
		Runtime: o.Runtime, Events: o.Events, Log: o.Log, Metrics: o.Metrics,
		Serial: *k.SerializeImagePulls, MaxParallel: k.MaxParallelImagePulls,
		QPS: float32(*k.RegistryPullQPS), Burst: int(k.RegistryBurst), RootDir: o.Kubelet.Node.RootDir,
		Plugins: plugins, Records: records,
	})
	if err != nil {
		return nil, err
	}
	return &Images{puller: puller, records: records, needsUser: o.NeedsUser, runtime: o.Runtime, secrets: o.Secrets,
		events: o.Events}, nil
}

// Prepare opens the records of image pulls, before any pod is started.
func (i *Images) Prepare() error {
	if i.records == nil {
		return nil
	}
	if err := i.records.Open(); err != nil {
		return fmt.Errorf("open the records of image pulls: %w", err)
	}
	return nil
}

// Start has s remove the records of images that are gone.
func (i *Images) Start(s run.Tasks) {
	if i.records != nil {
		s.Go("image pull records", func(ctx context.Context) error { return i.records.Tidy(ctx, i) })
	}
}

// Check reports what is wrong with what images are pulled and verified by, in files that the configuration names too.
func Check(k *kubeletconfig.Config) error {
	if _, err := pluginConfig(k); err != nil {
		return err
	}
	if !k.FeatureEnabled("KubeletEnsureSecretPulledImages") {
		return nil
	}
	return pullrecords.Check(k.Kubelet.ImagePullCredentialsVerificationPolicy,
		k.Kubelet.PreloadedImagesVerificationAllowlist)
}

// pluginConfig returns nil if the node has no plugins.
func pluginConfig(k *kubeletconfig.Config) (*credentialplugin.Config, error) {
	path, tokens := k.Node.ImageCredentialProviderConfig, "KubeletServiceAccountTokenForCredentialProviders"
	if path == "" || k.Node.ImageCredentialProviderBinDir == "" {
		return nil, nil // one without the other is refused with the flags
	}
	config, err := credentialplugin.Load(path, k.Node.ImageCredentialProviderBinDir, k.FeatureEnabled(tokens))
	if err != nil {
		return nil, fmt.Errorf("--image-credential-provider-config=%s: %w", path, err)
	}
	return config, nil
}

func (o *Options) newPlugins() (*credentialplugin.Plugins, error) {
	config, err := pluginConfig(o.Kubelet)
	if config == nil || err != nil {
		return nil, err
	}
	return credentialplugin.New(credentialplugin.Options{
		Config: config, BinDir: o.Kubelet.Node.ImageCredentialProviderBinDir, Accounts: o.Accounts, Log: o.Log,
		Metrics: o.Metrics,
	})
}

func (o *Options) newRecords() (*pullrecords.Records, error) {
	if !o.Kubelet.FeatureEnabled("KubeletEnsureSecretPulledImages") {
		return nil, nil
	}
	return pullrecords.New(pullrecords.Options{
		RootDir: o.Kubelet.Node.RootDir, Policy: o.Kubelet.Kubelet.ImagePullCredentialsVerificationPolicy,
		Allowlist: o.Kubelet.Kubelet.PreloadedImagesVerificationAllowlist, Log: o.Log, Metrics: o.Metrics,
	})
}
