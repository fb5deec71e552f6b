package podsetup

import (
	"fmt"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/podsync/internal/image"
	"github.com/microlet/microlet/services/podsync/internal/image/credentialplugin"
	"github.com/microlet/microlet/services/podsync/internal/image/pullrecords"
	"github.com/microlet/microlet/services/podsync/internal/podimages"
)

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
	if path == "" {
		return nil, nil
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
		Config: config, BinDir: o.Kubelet.Node.ImageCredentialProviderBinDir, Accounts: o.Cluster.Tokens, Log: o.Log,
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

func (o *Options) newImages() (*podimages.Images, *pullrecords.Records, error) {
	k := &o.Kubelet.Kubelet
	plugins, err := o.newPlugins()
	if err != nil {
		return nil, nil, err
	}
	records, err := o.newRecords()
	if err != nil {
		return nil, nil, err
	}
	puller, err := image.NewPuller(image.Options{
		Runtime: o.Runtime.Runtime, Events: o.Events, Log: o.Log, Metrics: o.Metrics,
		Serial: *k.SerializeImagePulls, MaxParallel: k.MaxParallelImagePulls,
		QPS: float32(*k.RegistryPullQPS), Burst: int(k.RegistryBurst), RootDir: o.Kubelet.Node.RootDir,
		Plugins: plugins, Records: records,
	})
	if err != nil {
		return nil, nil, err
	}
	return podimages.New(puller, o.Runtime, o.Cluster.Objects, o.Events), records, nil
}
