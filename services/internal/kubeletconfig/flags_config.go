package kubeletconfig

import (
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// configFlag is one flag that mirrors a field of KubeletConfiguration.
type configFlag struct {
	name  string
	field string // the field's path in the file
	// bind returns a pointer to the field, or a pflag.Value over it. Pointer fields that have flags are all defaulted,
	// so binding is safe once SetDefaults has run.
	bind func(c *kubeletv1beta1.KubeletConfiguration) any
	help string
}

// notDeprecated are the mirrors that the kubelet does not call deprecated in favour of the file.
var notDeprecated = map[string]bool{
	"v": true, "vmodule": true, "log-flush-frequency": true, "provider-id": true, "fail-cgroupv1": true,
}

const useFile = "set it in the file of --config instead"

// addConfigFlags registers the mirrors on fs, bound to c, and returns which field each one writes.
func addConfigFlags(fs *pflag.FlagSet, c *kubeletv1beta1.KubeletConfiguration) map[string]string {
	fields := make(map[string]string, len(configFlags))
	for _, f := range configFlags {
		fields[f.name] = f.field
		switch p := f.bind(c).(type) {
		case *bool:
			fs.BoolVar(p, f.name, *p, f.help)
		case *int32:
			fs.Int32Var(p, f.name, *p, f.help)
		case *int64:
			fs.Int64Var(p, f.name, *p, f.help)
		case *string:
			fs.StringVar(p, f.name, *p, f.help)
		case *[]string:
			fs.StringSliceVar(p, f.name, *p, f.help)
		case *metav1.Duration:
			fs.DurationVar(&p.Duration, f.name, p.Duration, f.help)
		case *logsapi.TimeOrMetaDuration:
			fs.DurationVar(&p.Duration.Duration, f.name, p.Duration.Duration, f.help)
		case pflag.Value:
			fs.Var(p, f.name, f.help)
		default:
			panic("kubeletconfig: flag " + f.name + " binds a type that has no flag")
		}
		if !notDeprecated[f.name] {
			fs.Lookup(f.name).Deprecated = useFile
		}
	}
	fs.Lookup("v").Shorthand = "v"
	return fields
}

type kc = kubeletv1beta1.KubeletConfiguration

// configFlags are in the order of the fields' groups; the help shows them sorted.
var configFlags = []configFlag{
	{"enable-server", "enableServer", func(c *kc) any { return c.EnableServer }, "Serve the node's HTTPS API."},
	{"fail-swap-on", "failSwapOn", func(c *kc) any { return c.FailSwapOn }, "Refuse to start on a node with swap."},
	{"pod-manifest-path", "staticPodPath", func(c *kc) any { return &c.StaticPodPath },
		"Folder of static pod files, or one such file. Names that start with a dot are left out."},
	{"sync-frequency", "syncFrequency", func(c *kc) any { return &c.SyncFrequency },
		"Longest time between two looks at a pod."},
	{"file-check-frequency", "fileCheckFrequency", func(c *kc) any { return &c.FileCheckFrequency },
		"Period of looking at the static pod files."},
	{"http-check-frequency", "httpCheckFrequency", func(c *kc) any { return &c.HTTPCheckFrequency },
		"Period of looking at --manifest-url."},
	{"manifest-url", "staticPodURL", func(c *kc) any { return &c.StaticPodURL }, "URL of further pods to run."},
	{"manifest-url-header", "staticPodURLHeader",
		func(c *kc) any { return cliflag.NewColonSeparatedMultimapStringString(&c.StaticPodURLHeader) },
		"HTTP headers for --manifest-url, as 'name:value' joined by commas. May be repeated."},
	{"address", "address", func(c *kc) any { return &ipValue{&c.Address} },
		"IP address to serve the HTTPS API on; 0.0.0.0 or :: for all."},
	{"port", "port", func(c *kc) any { return &c.Port }, "Port of the HTTPS API."},
	{"read-only-port", "readOnlyPort", func(c *kc) any { return &c.ReadOnlyPort },
		"Port of the unauthenticated read-only API; 0 turns it off."},
	{"fail-cgroupv1", "failCgroupV1", func(c *kc) any { return c.FailCgroupV1 },
		"Refuse to start on a node with cgroup v1."},

	{"container-runtime-endpoint", "containerRuntimeEndpoint", func(c *kc) any { return &c.ContainerRuntimeEndpoint },
		"Socket of the container runtime, such as unix:///run/containerd/containerd.sock."},
	{"image-service-endpoint", "imageServiceEndpoint", func(c *kc) any { return &c.ImageServiceEndpoint },
		"Socket of the image service; the container runtime's unless given."},

	{"anonymous-auth", "authentication.anonymous.enabled", func(c *kc) any { return c.Authentication.Anonymous.Enabled },
		"Let requests that no other method authenticates in as system:anonymous."},
	{"authentication-token-webhook", "authentication.webhook.enabled",
		func(c *kc) any { return c.Authentication.Webhook.Enabled }, "Authenticate bearer tokens with the TokenReview API."},
	{"authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL",
		func(c *kc) any { return &c.Authentication.Webhook.CacheTTL }, "How long an answer of TokenReview is kept."},
	{"client-ca-file", "authentication.x509.clientCAFile", func(c *kc) any { return &c.Authentication.X509.ClientCAFile },
		"Authorities whose client certificates are accepted."},
	{"authorization-mode", "authorization.mode", func(c *kc) any { return (*string)(&c.Authorization.Mode) },
		"AlwaysAllow or Webhook; Webhook asks the SubjectAccessReview API."},
	{"authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL",
		func(c *kc) any { return &c.Authorization.Webhook.CacheAuthorizedTTL },
		"How long a yes of SubjectAccessReview is kept."},
	{"authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL",
		func(c *kc) any { return &c.Authorization.Webhook.CacheUnauthorizedTTL },
		"How long a no of SubjectAccessReview is kept."},
	{"tls-cert-file", "tlsCertFile", func(c *kc) any { return &c.TLSCertFile },
		"Serving certificate with its intermediates. Without one a self-signed certificate is made in --cert-dir."},
	{"tls-private-key-file", "tlsPrivateKeyFile", func(c *kc) any { return &c.TLSPrivateKeyFile },
		"Private key of --tls-cert-file."},
	{"rotate-server-certificates", "serverTLSBootstrap", func(c *kc) any { return &c.ServerTLSBootstrap },
		"Request serving certificates from the API server and renew them."},
	{"tls-cipher-suites", "tlsCipherSuites", func(c *kc) any { return &c.TLSCipherSuites }, "Cipher suites of the HTTPS " +
		"API, joined by commas; Go's choice unless given. Preferred: " +
		strings.Join(cliflag.PreferredTLSCipherNames(), ", ") + ". Insecure: " +
		strings.Join(cliflag.InsecureTLSCipherNames(), ", ") + "."},
	{"tls-min-version", "tlsMinVersion", func(c *kc) any { return &c.TLSMinVersion },
		"Lowest TLS version: " + strings.Join(cliflag.TLSPossibleVersions(), ", ") + "."},
	{"rotate-certificates", "rotateCertificates", func(c *kc) any { return &c.RotateCertificates },
		"Renew the client certificate before it expires."},

	{"registry-qps", "registryPullQPS", func(c *kc) any { return c.RegistryPullQPS },
		"Image pulls per second; 0 for no limit."},
	{"registry-burst", "registryBurst", func(c *kc) any { return &c.RegistryBurst },
		"Image pulls at once beyond --registry-qps."},
	{"event-qps", "eventRecordQPS", func(c *kc) any { return c.EventRecordQPS }, "Events per second; 0 for no limit."},
	{"event-burst", "eventBurst", func(c *kc) any { return &c.EventBurst }, "Events at once beyond --event-qps."},
	{"enable-debugging-handlers", "enableDebuggingHandlers", func(c *kc) any { return c.EnableDebuggingHandlers },
		"Serve logs, exec, attach and port-forward."},
	{"contention-profiling", "enableContentionProfiling", func(c *kc) any { return &c.EnableContentionProfiling },
		"Profile blocking, where profiling is on."},
	{"healthz-port", "healthzPort", func(c *kc) any { return c.HealthzPort }, "Port of /healthz; 0 turns it off."},
	{"healthz-bind-address", "healthzBindAddress", func(c *kc) any { return &ipValue{&c.HealthzBindAddress} },
		"IP address of /healthz."},
	{"oom-score-adj", "oomScoreAdj", func(c *kc) any { return c.OOMScoreAdj },
		"oom_score_adj of the node agent, from -1000 to 1000."},
	{"cluster-domain", "clusterDomain", func(c *kc) any { return &c.ClusterDomain },
		"The cluster's DNS domain, searched by containers before the host's."},
	{"volume-plugin-dir", "volumePluginDir", func(c *kc) any { return &c.VolumePluginDir },
		"Folder of third-party volume plugins."},
	{"cluster-dns", "clusterDNS", func(c *kc) any { return &c.ClusterDNS },
		"IP addresses of the cluster's DNS servers, joined by commas, for pods with dnsPolicy ClusterFirst."},
	{"streaming-connection-idle-timeout", "streamingConnectionIdleTimeout",
		func(c *kc) any { return &c.StreamingConnectionIdleTimeout },
		"How long a streaming connection may be idle; 0 for ever."},
	{"node-status-update-frequency", "nodeStatusUpdateFrequency", func(c *kc) any { return &c.NodeStatusUpdateFrequency },
		"Period of computing the node's status. The node controller's grace period must fit it."},
	{"minimum-image-ttl-duration", "imageMinimumGCAge", func(c *kc) any { return &c.ImageMinimumGCAge },
		"Age that an unused image must have to be removed."},
	{"image-gc-high-threshold", "imageGCHighThresholdPercent", func(c *kc) any { return c.ImageGCHighThresholdPercent },
		"Disk use in percent above which images are removed; 100 turns it off."},
	{"image-gc-low-threshold", "imageGCLowThresholdPercent", func(c *kc) any { return c.ImageGCLowThresholdPercent },
		"Disk use in percent down to which images are removed."},
	{"volume-stats-agg-period", "volumeStatsAggPeriod", func(c *kc) any { return &c.VolumeStatsAggPeriod },
		"Period of measuring volumes; negative turns it off."},
	{"feature-gates", "featureGates", func(c *kc) any { return cliflag.NewMapStringBool(&c.FeatureGates) },
		"Feature gates of the kubelet as name=true|false, joined by commas. Those that matter here are listed in " +
			"docs/configuration.md."},
	{"kubelet-cgroups", "kubeletCgroups", func(c *kc) any { return &c.KubeletCgroups },
		"Absolute name of the cgroup to run the node agent in."},
	{"system-cgroups", "systemCgroups", func(c *kc) any { return &c.SystemCgroups },
		"Absolute name of the cgroup for processes that are in none. Needs --cgroup-root."},
	{"provider-id", "providerID", func(c *kc) any { return &c.ProviderID },
		"The node's identity in the machine database."},
	{"cgroups-per-qos", "cgroupsPerQOS", func(c *kc) any { return c.CgroupsPerQOS },
		"Keep a cgroup for each QoS class and pod."},
	{"cgroup-driver", "cgroupDriver", func(c *kc) any { return &c.CgroupDriver },
		"cgroupfs or systemd; the same as the container runtime's."},
	{"cgroup-root", "cgroupRoot", func(c *kc) any { return &c.CgroupRoot },
		"Cgroup under which pods live; empty for the runtime's default."},
	{"cpu-manager-policy", "cpuManagerPolicy", func(c *kc) any { return &c.CPUManagerPolicy }, "none or static."},
	{"cpu-manager-policy-options", "cpuManagerPolicyOptions",
		func(c *kc) any { return cliflag.NewMapStringStringNoSplit(&c.CPUManagerPolicyOptions) },
		"Options of the CPU manager's policy as key=value. May be repeated."},
	{"cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", func(c *kc) any { return &c.CPUManagerReconcilePeriod },
		"[Alpha] Period of the CPU manager."},
	{"qos-reserved", "qosReserved", func(c *kc) any { return cliflag.NewMapStringString(&c.QOSReserved) },
		"[Alpha] Share of the requests to reserve by QoS class, such as memory=50%. Needs the gate QOSReserved."},
	{"topology-manager-policy", "topologyManagerPolicy", func(c *kc) any { return &c.TopologyManagerPolicy },
		"none, best-effort, restricted or single-numa-node."},
	{"runtime-request-timeout", "runtimeRequestTimeout", func(c *kc) any { return &c.RuntimeRequestTimeout },
		"Deadline of a runtime request, other than pull, logs, exec and attach."},
	{"hairpin-mode", "hairpinMode", func(c *kc) any { return &c.HairpinMode },
		"promiscuous-bridge, hairpin-veth or none."},
	{"max-pods", "maxPods", func(c *kc) any { return &c.MaxPods }, "How many pods the node runs."},
	{"pod-cidr", "podCIDR", func(c *kc) any { return &c.PodCIDR }, "Range of the pods' addresses on a standalone node."},
	{"pod-max-pids", "podPidsLimit", func(c *kc) any { return c.PodPidsLimit },
		"Processes per pod; -1 for no limit below the node's."},
	{"resolv-conf", "resolvConf", func(c *kc) any { return c.ResolverConfig },
		"Resolver file that containers' DNS starts from; empty for none."},
	{"runonce", "runOnce", func(c *kc) any { return &c.RunOnce }, "Refused: the kubelet has no run-once mode any more."},
	{"cpu-cfs-quota", "cpuCFSQuota", func(c *kc) any { return c.CPUCFSQuota }, "Enforce CPU limits with CFS quota."},
	{"cpu-cfs-quota-period", "cpuCFSQuotaPeriod", func(c *kc) any { return c.CPUCFSQuotaPeriod },
		"CFS period, 1ms to 1s. Another than 100ms needs the gate CustomCPUCFSQuotaPeriod."},
	{"enable-controller-attach-detach", "enableControllerAttachDetach",
		func(c *kc) any { return c.EnableControllerAttachDetach }, "Leave attaching volumes to the controller."},
	{"make-iptables-util-chains", "makeIPTablesUtilChains", func(c *kc) any { return c.MakeIPTablesUtilChains },
		"Keep the kubelet's iptables chains."},
	{"container-log-max-size", "containerLogMaxSize", func(c *kc) any { return &c.ContainerLogMaxSize },
		"Size at which a container's log is rotated."},
	{"container-log-max-files", "containerLogMaxFiles", func(c *kc) any { return c.ContainerLogMaxFiles },
		"Log files kept per container, 2 at least."},
	{"allowed-unsafe-sysctls", "allowedUnsafeSysctls", func(c *kc) any { return &c.AllowedUnsafeSysctls },
		"Unsafe sysctls that pods may set, or patterns that end in *, joined by commas."},
	{"node-status-max-images", "nodeStatusMaxImages", func(c *kc) any { return c.NodeStatusMaxImages },
		"Images in the node's status; -1 for all."},
	{"kernel-memcg-notification", "kernelMemcgNotification", func(c *kc) any { return &c.KernelMemcgNotification },
		"Let the kernel notify of memory pressure instead of polling."},
	{"local-storage-capacity-isolation", "localStorageCapacityIsolation",
		func(c *kc) any { return c.LocalStorageCapacityIsolation }, "Account and limit local ephemeral storage."},
	{"max-open-files", "maxOpenFiles", func(c *kc) any { return &c.MaxOpenFiles }, "Files that the node agent may open."},
	{"kube-api-content-type", "contentType", func(c *kc) any { return &c.ContentType },
		"Content type of requests to the API server."},
	{"kube-api-qps", "kubeAPIQPS", func(c *kc) any { return c.KubeAPIQPS },
		"Requests per second to the API server, events and heartbeats apart."},
	{"kube-api-burst", "kubeAPIBurst", func(c *kc) any { return &c.KubeAPIBurst },
		"Requests at once beyond --kube-api-qps."},
	{"serialize-image-pulls", "serializeImagePulls", func(c *kc) any { return c.SerializeImagePulls },
		"Pull one image at a time."},

	{"eviction-hard", "evictionHard",
		func(c *kc) any { return cliflag.NewLangleSeparatedMapStringString(&c.EvictionHard) },
		"Thresholds such as memory.available<1Gi that evict at once."},
	{"eviction-soft", "evictionSoft",
		func(c *kc) any { return cliflag.NewLangleSeparatedMapStringString(&c.EvictionSoft) },
		"Thresholds such as memory.available<1.5Gi that evict after their grace period."},
	{"eviction-soft-grace-period", "evictionSoftGracePeriod",
		func(c *kc) any { return cliflag.NewMapStringString(&c.EvictionSoftGracePeriod) },
		"How long a soft threshold must hold, such as memory.available=1m30s."},
	{"eviction-pressure-transition-period", "evictionPressureTransitionPeriod",
		func(c *kc) any { return &c.EvictionPressureTransitionPeriod },
		"How long a pressure condition stays after its cause is gone."},
	{"eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", func(c *kc) any { return &c.EvictionMaxPodGracePeriod },
		"Longest grace period in seconds of a soft eviction; the pod's own if negative."},
	{"eviction-minimum-reclaim", "evictionMinimumReclaim",
		func(c *kc) any { return cliflag.NewMapStringString(&c.EvictionMinimumReclaim) },
		"What an eviction frees at least, such as imagefs.available=2Gi."},
	{"pods-per-core", "podsPerCore", func(c *kc) any { return &c.PodsPerCore },
		"Pods per CPU, within --max-pods; 0 for no such limit."},
	{"protect-kernel-defaults", "protectKernelDefaults", func(c *kc) any { return &c.ProtectKernelDefaults },
		"Refuse to start where kernel settings differ from the kubelet's, instead of changing them."},
	{"reserved-cpus", "reservedSystemCPUs", func(c *kc) any { return &c.ReservedSystemCPUs },
		"CPUs kept for the system, such as 0-1,4. Wins over the counts of --system-reserved and --kube-reserved."},
	{"topology-manager-scope", "topologyManagerScope", func(c *kc) any { return &c.TopologyManagerScope },
		"container or pod."},
	{"topology-manager-policy-options", "topologyManagerPolicyOptions",
		func(c *kc) any { return cliflag.NewMapStringString(&c.TopologyManagerPolicyOptions) },
		"Options of the topology manager's policy as key=value."},
	{"system-reserved", "systemReserved", func(c *kc) any { return cliflag.NewMapStringString(&c.SystemReserved) },
		"Resources kept for the system, such as cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000."},
	{"kube-reserved", "kubeReserved", func(c *kc) any { return cliflag.NewMapStringString(&c.KubeReserved) },
		"Resources kept for Kubernetes' own processes, such as cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000."},
	{"enforce-node-allocatable", "enforceNodeAllocatable", func(c *kc) any { return &c.EnforceNodeAllocatable },
		"What is enforced: none, or any of pods, system-reserved, system-reserved-compressible, kube-reserved, " +
			"kube-reserved-compressible."},
	{"system-reserved-cgroup", "systemReservedCgroup", func(c *kc) any { return &c.SystemReservedCgroup },
		"Absolute name of the cgroup that --system-reserved is enforced on."},
	{"kube-reserved-cgroup", "kubeReservedCgroup", func(c *kc) any { return &c.KubeReservedCgroup },
		"Absolute name of the cgroup that --kube-reserved is enforced on."},

	{"logging-format", "logging.format", func(c *kc) any { return &c.Logging.Format }, "Format of the log: json or text."},
	{"log-flush-frequency", "logging.flushFrequency", func(c *kc) any { return &c.Logging.FlushFrequency },
		"Longest time that a log line may be buffered."},
	{"v", "logging.verbosity", func(c *kc) any { return logsapi.VerbosityLevelPflag(&c.Logging.Verbosity) },
		"Verbosity of the log."},
	{"vmodule", "logging.vmodule", func(c *kc) any { return logsapi.VModuleConfigurationPflag(&c.Logging.VModule) },
		"Verbosity by source file, as pattern=N joined by commas; text format only."},
	{"log-text-split-stream", "logging.options.text.splitStream",
		func(c *kc) any { return &c.Logging.Options.Text.SplitStream },
		"[Alpha] Errors to stderr and the rest to stdout, in text format. Needs the gate LoggingAlphaOptions."},
	{"log-text-info-buffer-size", "logging.options.text.infoBufferSize",
		func(c *kc) any { return &c.Logging.Options.Text.InfoBufferSize },
		"[Alpha] Buffer of the split text streams, such as 4Mi. Needs the gate LoggingAlphaOptions."},
	{"log-json-split-stream", "logging.options.json.splitStream",
		func(c *kc) any { return &c.Logging.Options.JSON.SplitStream },
		"[Alpha] Errors to stderr and the rest to stdout, in JSON format. Needs the gate LoggingAlphaOptions."},
	{"log-json-info-buffer-size", "logging.options.json.infoBufferSize",
		func(c *kc) any { return &c.Logging.Options.JSON.InfoBufferSize },
		"[Alpha] Buffer of the split JSON streams, such as 4Mi. Needs the gate LoggingAlphaOptions."},

	{"memory-manager-policy", "memoryManagerPolicy", func(c *kc) any { return &c.MemoryManagerPolicy }, "None or Static."},
	{"reserved-memory", "reservedMemory", func(c *kc) any { return &reservedMemoryValue{into: &c.ReservedMemory} },
		"Memory kept by NUMA node, such as 0:memory=1Gi,hugepages-1Gi=2Gi. May be repeated."},
	{"register-node", "registerNode", func(c *kc) any { return c.RegisterNode }, "Register the node with the API server."},
	{"register-with-taints", "registerWithTaints", func(c *kc) any { return &taintsValue{&c.RegisterWithTaints} },
		"Taints for the node when it registers, as key=value:effect joined by commas."},
}
