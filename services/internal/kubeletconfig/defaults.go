package kubeletconfig

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// defaultEvictionHard is the kubelet's on Linux. It is no default of the API: the kubelet fills it in when a file says
// nothing of evictionHard (https://github.com/kubernetes/kubernetes/pull/110263).
var defaultEvictionHard = map[string]string{
	"memory.available":   "100Mi",
	"nodefs.available":   "10%",
	"nodefs.inodesFree":  "5%",
	"imagefs.available":  "15%",
	"imagefs.inodesFree": "5%",
}

// Default is what an empty file gives.
func Default() kubeletv1beta1.KubeletConfiguration {
	var c kubeletv1beta1.KubeletConfiguration
	SetDefaults(&c)
	fillEvictionHard(&c)
	return c
}

// baseWithoutFile is what the flags apply to when there is no --config: an API without authentication, as the kubelet's
// command line has been since before the file existed, and no eviction thresholds.
func baseWithoutFile(gates map[string]bool) *kubeletv1beta1.KubeletConfiguration {
	var c kubeletv1beta1.KubeletConfiguration
	setDefaults(&c, gates)
	c.Authentication.Anonymous.Enabled = new(true)
	c.Authentication.Webhook.Enabled = new(false)
	c.Authorization.Mode = kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
	c.ReadOnlyPort = 10255
	return &c
}

// fillEvictionHard is for the configuration of a file, before drop-ins and flags.
func fillEvictionHard(c *kubeletv1beta1.KubeletConfiguration) {
	switch {
	case c.EvictionHard == nil:
		c.EvictionHard = maps.Clone(defaultEvictionHard)
	case *c.MergeDefaultEvictionSettings:
		for signal, threshold := range defaultEvictionHard {
			if _, set := c.EvictionHard[signal]; !set {
				c.EvictionHard[signal] = threshold
			}
		}
	}
}

// SetDefaults fills what c leaves empty with the kubelet's defaults of v1beta1
// (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
func SetDefaults(c *kubeletv1beta1.KubeletConfiguration) { setDefaults(c, nil) }

// setDefaults takes the gates of the command line, which win over those of c: two defaults depend on a gate.
func setDefaults(c *kubeletv1beta1.KubeletConfiguration, flagGates map[string]bool) {
	gates := maps.Clone(c.FeatureGates)
	if gates == nil {
		gates = map[string]bool{}
	}
	maps.Copy(gates, flagGates)

	// The node's status used to be reported as often as it was computed, and still is where that period is set.
	if c.NodeStatusReportFrequency.Duration == 0 && c.NodeStatusUpdateFrequency.Duration != 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	if c.PodPidsLimit != nil && *c.PodPidsLimit < 0 {
		c.PodPidsLimit = new(int64(-1))
	}
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
	if gateEnabled(gates, gateCrashLoopBackOffMax) {
		setPointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	}
	if gateEnabled(gates, gateEnsureSecretPulledImages) {
		setValue(&c.ImagePullCredentialsVerificationPolicy, kubeletv1beta1.NeverVerifyPreloadedImages)
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
	defaultPointers(c)
	defaultValues(c)
}

// defaultPointers sets the fields that distinguish absent from zero.
func defaultPointers(c *kubeletv1beta1.KubeletConfiguration) {
	// Setting maxParallelImagePulls is enough to pull in parallel.
	setPointer(&c.SerializeImagePulls, c.MaxParallelImagePulls == nil || *c.MaxParallelImagePulls < 2)
	setPointer(&c.EnableServer, true)
	setPointer(&c.Authentication.Anonymous.Enabled, false)
	setPointer(&c.Authentication.Webhook.Enabled, true)
	setPointer(&c.RegistryPullQPS, 5)
	setPointer(&c.EventRecordQPS, 50)
	setPointer(&c.EnableDebuggingHandlers, true)
	setPointer(&c.HealthzPort, 10248)
	setPointer(&c.OOMScoreAdj, -999)
	setPointer(&c.ImageGCHighThresholdPercent, 85)
	setPointer(&c.ImageGCLowThresholdPercent, 80)
	setPointer(&c.CgroupsPerQOS, true)
	setPointer(&c.PodPidsLimit, -1)
	setPointer(&c.ResolverConfig, "/etc/resolv.conf")
	setPointer(&c.CPUCFSQuota, true)
	setPointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	setPointer(&c.NodeStatusMaxImages, 50)
	setPointer(&c.KubeAPIQPS, 50)
	setPointer(&c.MergeDefaultEvictionSettings, false)
	setPointer(&c.EnableControllerAttachDetach, true)
	setPointer(&c.MakeIPTablesUtilChains, true)
	setPointer(&c.IPTablesMasqueradeBit, 14)
	setPointer(&c.IPTablesDropBit, 15)
	setPointer(&c.FailSwapOn, true)
	setPointer(&c.ContainerLogMaxFiles, 5)
	setPointer(&c.ContainerLogMaxWorkers, 1)
	setPointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	setPointer(&c.EnableSystemLogHandler, true)
	setPointer(&c.EnableProfilingHandler, true)
	setPointer(&c.EnableDebugFlagsHandler, true)
	setPointer(&c.SeccompDefault, false)
	setPointer(&c.FailCgroupV1, true)
	setPointer(&c.RegisterNode, true)
	setPointer(&c.LocalStorageCapacityIsolation, true)
}

// defaultValues sets the fields for which zero means absent.
func defaultValues(c *kubeletv1beta1.KubeletConfiguration) {
	setValue(&c.SyncFrequency.Duration, time.Minute)
	setValue(&c.FileCheckFrequency.Duration, 20*time.Second)
	setValue(&c.HTTPCheckFrequency.Duration, 20*time.Second)
	setValue(&c.Address, "0.0.0.0")
	setValue(&c.Port, 10250)
	setValue(&c.Authentication.Webhook.CacheTTL.Duration, 2*time.Minute)
	setValue(&c.Authorization.Mode, kubeletv1beta1.KubeletAuthorizationModeWebhook)
	setValue(&c.Authorization.Webhook.CacheAuthorizedTTL.Duration, 5*time.Minute)
	setValue(&c.Authorization.Webhook.CacheUnauthorizedTTL.Duration, 30*time.Second)
	setValue(&c.RegistryBurst, 10)
	setValue(&c.EventBurst, 100)
	setValue(&c.HealthzBindAddress, "127.0.0.1")
	setValue(&c.StreamingConnectionIdleTimeout.Duration, 4*time.Hour)
	setValue(&c.NodeStatusUpdateFrequency.Duration, 10*time.Second)
	setValue(&c.NodeStatusReportFrequency.Duration, 5*time.Minute)
	setValue(&c.NodeLeaseDurationSeconds, 40)
	setValue(&c.ImageMinimumGCAge.Duration, 2*time.Minute)
	setValue(&c.VolumeStatsAggPeriod.Duration, time.Minute)
	setValue(&c.CgroupDriver, "cgroupfs")
	setValue(&c.CPUManagerPolicy, "none")
	setValue(&c.CPUManagerReconcilePeriod.Duration, 10*time.Second)
	setValue(&c.MemoryManagerPolicy, kubeletv1beta1.NoneMemoryManagerPolicy)
	setValue(&c.TopologyManagerPolicy, kubeletv1beta1.NoneTopologyManagerPolicy)
	setValue(&c.TopologyManagerScope, kubeletv1beta1.ContainerTopologyManagerScope)
	setValue(&c.RuntimeRequestTimeout.Duration, 2*time.Minute)
	setValue(&c.HairpinMode, kubeletv1beta1.PromiscuousBridge)
	setValue(&c.MaxPods, 110)
	setValue(&c.MaxOpenFiles, 1000000)
	setValue(&c.ContentType, "application/vnd.kubernetes.protobuf")
	setValue(&c.KubeAPIBurst, 100)
	setValue(&c.EvictionPressureTransitionPeriod.Duration, 5*time.Minute)
	setValue(&c.ContainerLogMaxSize, "10Mi")
	setValue(&c.ConfigMapAndSecretChangeDetectionStrategy, kubeletv1beta1.WatchChangeDetectionStrategy)
	setValue(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	setValue(&c.MemoryReservationPolicy, kubeletv1beta1.NoneMemoryReservationPolicy)
	setValue(&c.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	setValue(&c.PodLogsDir, "/var/log/pods")
}

func setPointer[T any](field **T, to T) {
	if *field == nil {
		*field = &to
	}
}

func setValue[T comparable](field *T, to T) {
	var zero T
	if *field == zero {
		*field = to
	}
}
