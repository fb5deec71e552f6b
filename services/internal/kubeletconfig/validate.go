package kubeletconfig

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	sysctl "k8s.io/component-helpers/node/util/sysctl"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/podcgroup"
)

const limitedSwap = "LimitedSwap"

// validate holds c to the kubelet's rules (pkg/kubelet/apis/config/validation), apart from those about this machine.
func validate(p *problems, c *Config) {
	k := &c.Kubelet
	validateGates(p, k.FeatureGates)
	validateNumbers(p, k)
	validateChoices(p, k)
	validateImages(p, k)
	validateShutdown(p, k)
	validateCrashLoop(p, k)
	validateReservations(p, k)
	validateEviction(p, k)
	validateEdge(p, k)
	validateLogging(p, k)
	validateHiddenMetrics(p, k)
	validatePodSettings(p, k)
	validateNodeFlags(p, &c.Node)
}

// atLeast refuses a number below a bound.
func atLeast[T int32 | int64](p *problems, name string, n, lowest T) {
	p.check(n >= lowest, name, n, "the number is too small", fmt.Sprintf("write %d or more", lowest))
}

func within[T int32 | int64](p *problems, name string, n, lowest, highest T) {
	p.check(lowest <= n && n <= highest, name, n, "the number is out of range",
		fmt.Sprintf("write a number from %d to %d", lowest, highest))
}

func validateNumbers(p *problems, k *kc) {
	atLeast(p, "nodeLeaseDurationSeconds", k.NodeLeaseDurationSeconds, 1)
	atLeast(p, "eventBurst", k.EventBurst, 0)
	atLeast(p, "eventRecordQPS", *k.EventRecordQPS, 0)
	atLeast(p, "kubeAPIBurst", k.KubeAPIBurst, 0)
	atLeast(p, "kubeAPIQPS", *k.KubeAPIQPS, 0)
	atLeast(p, "registryBurst", k.RegistryBurst, 0)
	atLeast(p, "registryPullQPS", *k.RegistryPullQPS, 0)
	atLeast(p, "nodeStatusMaxImages", *k.NodeStatusMaxImages, -1)
	atLeast(p, "maxOpenFiles", k.MaxOpenFiles, 0)
	atLeast(p, "maxPods", k.MaxPods, 0)
	atLeast(p, "podsPerCore", k.PodsPerCore, 0)
	atLeast(p, "containerLogMaxWorkers", *k.ContainerLogMaxWorkers, 1)
	atLeast(p, "containerLogMaxFiles", *k.ContainerLogMaxFiles, 2)
	within(p, "oomScoreAdj", *k.OOMScoreAdj, -1000, 1000)
	within(p, "port", k.Port, 1, 65535)
	within(p, "healthzPort", *k.HealthzPort, 0, 65535)
	within(p, "readOnlyPort", k.ReadOnlyPort, 0, 65535)
	within(p, "iptablesMasqueradeBit", *k.IPTablesMasqueradeBit, 0, 31)
	within(p, "iptablesDropBit", *k.IPTablesDropBit, 0, 31)
	if interval := k.ContainerLogMonitorInterval.Duration; interval < 3*time.Second {
		p.add("containerLogMonitorInterval", interval, "the period is too short", "write 3s or more")
	}

	period := k.CPUCFSQuotaPeriod.Duration
	if gateEnabled(k.FeatureGates, gateCustomCPUCFSQuotaPeriod) {
		p.check(time.Millisecond <= period && period <= time.Second, "cpuCFSQuotaPeriod", period,
			"the period is out of range", "write a duration from 1ms to 1s")
	} else {
		p.check(period == 100*time.Millisecond, "cpuCFSQuotaPeriod", period,
			"another period than 100ms needs the feature gate "+gateCustomCPUCFSQuotaPeriod,
			"turn the gate on, or remove the field")
	}
}

// oneOf refuses what is none of the choices.
func oneOf(p *problems, name, given string, choices ...string) {
	for _, choice := range choices {
		if given == choice {
			return
		}
	}
	p.add(name, given, "it is no known choice", "write one of "+strings.Join(choices, ", "))
}

func validateChoices(p *problems, k *kc) {
	oneOf(p, "topologyManagerPolicy", k.TopologyManagerPolicy, kubeletv1beta1.NoneTopologyManagerPolicy,
		kubeletv1beta1.BestEffortTopologyManagerPolicy, kubeletv1beta1.RestrictedTopologyManagerPolicy,
		kubeletv1beta1.SingleNumaNodeTopologyManagerPolicy)
	oneOf(p, "topologyManagerScope", k.TopologyManagerScope, kubeletv1beta1.ContainerTopologyManagerScope,
		kubeletv1beta1.PodTopologyManagerScope)
	oneOf(p, "cpuManagerPolicy", k.CPUManagerPolicy, "none", "static")
	oneOf(p, "memoryManagerPolicy", k.MemoryManagerPolicy, kubeletv1beta1.NoneMemoryManagerPolicy,
		kubeletv1beta1.StaticMemoryManagerPolicy)
	oneOf(p, "hairpinMode", k.HairpinMode, kubeletv1beta1.HairpinNone, kubeletv1beta1.HairpinVeth,
		kubeletv1beta1.PromiscuousBridge)
	oneOf(p, "cgroupDriver", k.CgroupDriver, "cgroupfs", "systemd")
	oneOf(p, "memoryReservationPolicy", string(k.MemoryReservationPolicy),
		string(kubeletv1beta1.NoneMemoryReservationPolicy),
		string(kubeletv1beta1.TieredReservationMemoryReservationPolicy))
	oneOf(p, "configMapAndSecretChangeDetectionStrategy", string(k.ConfigMapAndSecretChangeDetectionStrategy),
		string(kubeletv1beta1.GetChangeDetectionStrategy), string(kubeletv1beta1.TTLCacheChangeDetectionStrategy),
		string(kubeletv1beta1.WatchChangeDetectionStrategy))

	p.check(!k.RunOnce, "runOnce", true, "the kubelet has no run-once mode any more", "remove it")
	p.check(len(k.TopologyManagerPolicyOptions) == 0 || gateEnabled(k.FeatureGates, gateTopologyManagerOptions),
		"topologyManagerPolicyOptions", k.TopologyManagerPolicyOptions,
		"it needs the feature gate "+gateTopologyManagerOptions, "turn the gate on, or remove the field")

	if gateEnabled(k.FeatureGates, gateNodeSwap) {
		if k.MemorySwap.SwapBehavior != "" {
			oneOf(p, "memorySwap.swapBehavior", k.MemorySwap.SwapBehavior, limitedSwap, "NoSwap")
		}
	} else {
		p.check(k.MemorySwap.SwapBehavior == "", "memorySwap.swapBehavior", k.MemorySwap.SwapBehavior,
			"it needs the feature gate "+gateNodeSwap, "turn the gate on, or remove the field")
	}

	qos := gateEnabled(k.FeatureGates, gateMemoryQoS)
	p.check(qos || k.MemoryReservationPolicy != kubeletv1beta1.TieredReservationMemoryReservationPolicy,
		"memoryReservationPolicy",
		k.MemoryReservationPolicy, "it needs the feature gate "+gateMemoryQoS, "turn the gate on, or write None")
	if factor := k.MemoryThrottlingFactor; factor != nil {
		// 0.9 was the default once and may stand in a file without the gate.
		p.check(qos || *factor == 0.9, "memoryThrottlingFactor", *factor, "it needs the feature gate "+gateMemoryQoS,
			"turn the gate on, or remove the field")
		p.check(0 < *factor && *factor <= 1, "memoryThrottlingFactor", *factor, "the number is out of range",
			"write a number above 0, up to 1")
	}
}

func validateImages(p *problems, k *kc) {
	within(p, "imageGCHighThresholdPercent", *k.ImageGCHighThresholdPercent, 0, 100)
	within(p, "imageGCLowThresholdPercent", *k.ImageGCLowThresholdPercent, 0, 100)
	p.check(*k.ImageGCLowThresholdPercent < *k.ImageGCHighThresholdPercent, "imageGCLowThresholdPercent",
		*k.ImageGCLowThresholdPercent,
		fmt.Sprintf("it is not below imageGCHighThresholdPercent=%d", *k.ImageGCHighThresholdPercent),
		"lower it, or raise the other")
	youngest, oldest := k.ImageMinimumGCAge.Duration, k.ImageMaximumGCAge.Duration
	p.check(youngest >= 0, "imageMinimumGCAge", youngest, "the duration is negative", "write 0s or more")
	p.check(oldest >= 0, "imageMaximumGCAge", oldest, "the duration is negative", "write 0s or more")
	p.check(oldest <= 0 || oldest > youngest, "imageMaximumGCAge", oldest,
		fmt.Sprintf("it is not above imageMinimumGCAge=%s", youngest), "raise it, or write 0s for no limit")
	p.check(oldest == 0 || gateEnabled(k.FeatureGates, gateImageMaximumGCAge), "imageMaximumGCAge", oldest,
		"it needs the feature gate "+gateImageMaximumGCAge, "turn the gate on, or remove the field")
	if pulls := k.MaxParallelImagePulls; pulls != nil {
		atLeast(p, "maxParallelImagePulls", *pulls, 1)
		p.check(!*k.SerializeImagePulls || *pulls <= 1, "maxParallelImagePulls", *pulls, "serializeImagePulls is true",
			"set serializeImagePulls: false")
	}

	policy, allowlist := k.ImagePullCredentialsVerificationPolicy, k.PreloadedImagesVerificationAllowlist
	if !gateEnabled(k.FeatureGates, gateEnsureSecretPulledImages) {
		const needs = "it needs the feature gate " + gateEnsureSecretPulledImages
		p.check(policy == "", "imagePullCredentialsVerificationPolicy", policy, needs,
			"turn the gate on, or remove the field")
		p.check(len(allowlist) == 0, "preloadedImagesVerificationAllowlist", allowlist, needs,
			"turn the gate on, or remove the field")
		return
	}
	oneOf(p, "imagePullCredentialsVerificationPolicy", string(policy), string(kubeletv1beta1.NeverVerify),
		string(kubeletv1beta1.NeverVerifyPreloadedImages),
		string(kubeletv1beta1.NeverVerifyAllowlistedImages), string(kubeletv1beta1.AlwaysVerify))
	p.check(len(allowlist) == 0 || policy == kubeletv1beta1.NeverVerifyAllowlistedImages,
		"preloadedImagesVerificationAllowlist", allowlist,
		"imagePullCredentialsVerificationPolicy is not NeverVerifyAllowlistedImages",
		"set that policy, or remove the list")
}

func validateShutdown(p *problems, k *kc) {
	total, critical, byPriority := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration,
		k.ShutdownGracePeriodByPodPriority
	if gateEnabled(k.FeatureGates, gateGracefulNodeShutdown) {
		p.check(critical <= total, "shutdownGracePeriodCriticalPods", critical,
			fmt.Sprintf("it is above shutdownGracePeriod=%s, of which it is a part", total),
			"lower it, or raise the other")
		for name, period := range map[string]time.Duration{
			"shutdownGracePeriod":             total,
			"shutdownGracePeriodCriticalPods": critical,
		} {
			p.check(period == 0 || period >= time.Second, name, period, "the period is too short",
				"write 1s or more, or 0s for none")
		}
	} else {
		p.check(total <= 0 && critical <= 0, "shutdownGracePeriod", total,
			"it needs the feature gate "+gateGracefulNodeShutdown,
			"turn the gate on, or remove shutdownGracePeriod and shutdownGracePeriodCriticalPods")
	}
	if gateEnabled(k.FeatureGates, gateGracefulNodeShutdownPriority) {
		p.check(len(byPriority) == 0 || total <= 0 && critical <= 0, "shutdownGracePeriodByPodPriority", byPriority,
			"shutdownGracePeriod is set too", "keep one of the two")
	} else {
		p.check(len(byPriority) == 0, "shutdownGracePeriodByPodPriority", byPriority,
			"it needs the feature gate "+gateGracefulNodeShutdownPriority, "turn the gate on, or remove the field")
	}
}

func validateCrashLoop(p *problems, k *kc) {
	const name = "crashLoopBackOff.maxContainerRestartPeriod"
	longest := k.CrashLoopBackOff.MaxContainerRestartPeriod
	switch on := gateEnabled(k.FeatureGates, gateCrashLoopBackOffMax); {
	case on && longest == nil:
		p.add(name, nil, "the feature gate "+gateCrashLoopBackOffMax+" is on and no period is set",
			"write a duration from 1s to 5m")
	case on:
		p.check(time.Second <= longest.Duration && longest.Duration <= 5*time.Minute, name, longest.Duration,
			"the duration is out of range", "write one from 1s to 5m")
	case longest != nil:
		p.add(name, longest.Duration, "it needs the feature gate "+gateCrashLoopBackOffMax,
			"turn the gate on, or remove the field")
	}
}

func validatePodSettings(p *problems, k *kc) {
	p.check(k.ContainerRuntimeEndpoint != "", "containerRuntimeEndpoint", "", "no container runtime is named",
		"write its socket, such as unix:///run/containerd/containerd.sock")
	for name, endpoint := range map[string]string{
		"containerRuntimeEndpoint": k.ContainerRuntimeEndpoint,
		"imageServiceEndpoint":     k.ImageServiceEndpoint,
	} {
		path, scheme := endpoint, ""
		if before, after, ok := strings.Cut(endpoint, "://"); ok {
			scheme, path = before, after
		}
		p.check(endpoint == "" || (scheme == "unix" || scheme == "") && filepath.IsAbs(path), name, endpoint,
			"it is no unix socket", "write an absolute path, such as unix:///run/containerd/containerd.sock")
	}
	for i, taint := range k.RegisterWithTaints {
		name := fmt.Sprintf("registerWithTaints[%d]", i)
		if why := taintProblem(taint); why != "" && (taint.Effect != "" || !strings.HasPrefix(why, "effect")) {
			p.add(name, taint, why, "correct the taint")
		}
		p.check(taint.TimeAdded == nil, name+".timeAdded", taint.TimeAdded, "the time is set by the node controller",
			"remove it")
	}
	for i, server := range k.ClusterDNS {
		p.check(utilvalidation.IsValidIPForLegacyField(nil, server, false, nil) == nil,
			fmt.Sprintf("clusterDNS[%d]", i), server, "it is no IP address",
			"write the DNS service's address, such as 10.96.0.10")
	}
	p.check(k.PodCIDR == "" || !slices.ContainsFunc(strings.Split(k.PodCIDR, ","), isNoRange), "podCIDR", k.PodCIDR,
		"it is no range of addresses",
		"write one such as 10.244.1.0/24, or one of each IP family with a comma between them")
	validateSystemCgroups(p, k)
	if users := k.UserNamespaces; users != nil && users.IDsPerPod != nil {
		const unit = 65536
		n := *users.IDsPerPod
		p.check(n >= unit && n%unit == 0 && n <= 1<<32-1, "userNamespaces.idsPerPod", n,
			"it is no multiple of 65536 within 32 bits", "write a multiple of 65536")
	}
	validateSysctls(p, k)
	validatePodLogsDir(p, k.PodLogsDir)
}

func isNoRange(cidr string) bool {
	_, err := netip.ParsePrefix(cidr)
	return err != nil
}

func validateSystemCgroups(p *problems, k *kc) {
	if k.SystemCgroups == "" {
		return
	}
	const name = "systemCgroups"
	p.check(k.CgroupRoot != "", name, k.SystemCgroups, "cgroupRoot is not set", "set cgroupRoot, such as /")
	at := path.Join("/", k.SystemCgroups)
	p.check(at != "/", name, k.SystemCgroups, "it is the root cgroup, out of which processes are moved",
		"write another one, such as /system")
	systemd := k.CgroupDriver == "systemd"
	pods, err := podcgroup.ParseRoot(k.CgroupRoot, systemd).Child(podcgroup.RootPart).Path(systemd)
	p.check(err != nil || at != pods && !strings.HasPrefix(at, pods+"/"), name, k.SystemCgroups,
		"it is the pods' cgroup "+pods+", or below it", "write another one, such as /system")
}

func validateSysctls(p *problems, k *kc) {
	p.check(len(k.DefaultPodSysctls) == 0 || gateEnabled(k.FeatureGates, gateDefaultPodSysctls), "defaultPodSysctls",
		k.DefaultPodSysctls,
		"it needs the feature gate "+gateDefaultPodSysctls, "turn the gate on, or remove the field")
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(k.DefaultPodSysctls)) {
		namespace, normal, pattern := sysctl.GetNamespace(name)
		p.check(namespace != sysctl.UnknownNamespace && !pattern, "defaultPodSysctls", name,
			"it is no sysctl that a pod has of its own", "remove it")
		p.check(!seen[normal], "defaultPodSysctls", name, "it is there twice, with dots and with slashes", "remove one")
		seen[normal] = true
	}
}

func validatePodLogsDir(p *problems, dir string) {
	const name = "podLogsDir"
	p.check(filepath.IsAbs(dir), name, dir, "the path is not absolute", "write it from /")
	p.check(!filepath.IsAbs(dir) || filepath.Clean(dir) == dir, name, dir, "the path is not in its shortest form",
		"write "+filepath.Clean(dir))
	ascii := strings.IndexFunc(dir, func(r rune) bool { return r > unicode.MaxASCII }) < 0
	p.check(ascii, name, dir, "the path goes into metrics, which take ASCII", "use ASCII letters")
}

// addAll takes over problems that a library found.
func (p *problems) addAll(list field.ErrorList, remedy string) {
	for _, e := range list {
		p.add(e.Field, e.BadValue, e.ErrorBody(), remedy)
	}
}

func validateTracing(p *problems, k *kc) {
	p.addAll(tracingapi.ValidateTracingConfiguration(k.Tracing, nil, field.NewPath("tracing")), "correct the field")
}
