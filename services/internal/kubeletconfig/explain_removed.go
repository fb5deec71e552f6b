package kubeletconfig

// removedFlags are flags of older kubelets that stand in unit files still, with what to do instead.
var removedFlags = removed(map[string][]string{
	"remove it: the container runtime's own configuration names the CNI plugins, since 1.24": {
		"network-plugin", "network-plugin-dir", "network-plugin-mtu", "cni-bin-dir", "cni-cache-dir", "cni-conf-dir",
	},
	"remove it: it was dockershim's, which 1.24 removed": {
		"docker-endpoint", "docker-exec-handler", "image-pull-progress-deadline", "experimental-dockershim",
		"experimental-dockershim-root-directory",
	},
	"remove it: every runtime is a CRI one since 1.27, and containerRuntimeEndpoint names its socket": {
		"container-runtime", "experimental-cri", "rkt-api-endpoint", "rkt-path", "rkt-stage1-image",
	},
	"remove it: since 1.26 logs go to standard error alone, which systemd keeps in the journal": {
		"add-dir-header", "alsologtostderr", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "logtostderr",
		"one-output", "skip-headers", "skip-log-headers", "stderrthreshold",
	},
	"remove it: it was cAdvisor's; figures of containers come without it": {
		"allow-dynamic-housekeeping", "application-metrics-count-limit", "boot-id-file", "container-hints", "containerd",
		"containerd-namespace", "disable-root-cgroup-stats", "docker", "docker-env-metadata-whitelist", "docker-only",
		"docker-root", "docker-tls", "docker-tls-ca", "docker-tls-cert", "docker-tls-key", "enable-load-reader",
		"event-storage-age-limit", "event-storage-event-limit", "global-housekeeping-interval", "log-cadvisor-usage",
		"machine-id-file", "storage-driver-buffer-duration", "storage-driver-db", "storage-driver-host",
		"storage-driver-password", "storage-driver-secure", "storage-driver-table", "storage-driver-user",
	},
	"remove it: cAdvisor's metrics are at /metrics/cadvisor of the HTTPS API": {
		"cadvisor-port", "enable-cadvisor-json-endpoints", "enable-custom-metrics",
	},
	"use --kubeconfig": {"api-servers", "auth-path"},
	"remove it: --kubeconfig alone decides about the API server": {"require-kubeconfig"},
	"use --bootstrap-kubeconfig":                                 {"experimental-bootstrap-kubeconfig"},
	"remove it: admission in the cluster says who may be privileged and who may use the host's namespaces": {
		"allow-privileged", "host-ipc-sources", "host-network-sources", "host-pid-sources",
	},
	"use --cloud-provider=external and a cloud controller manager": {"cloud-config"},
	"use --image-credential-provider-config and --image-credential-provider-bin-dir": {
		"azure-container-registry-config", "google-json-key",
	},
	"use --config and --config-dir: configuration from the API ended with 1.24": {
		"dynamic-config-dir", "init-config-dir",
	},
	"use static pods, below --pod-manifest-path: checkpoints of pods ended with 1.16": {"bootstrap-checkpoint-path"},
	"remove it: the volumes of a pod that has ended are unmounted":                    {"keep-terminated-pod-volumes"},
	"remove it: masquerading is the network plugin's": {
		"non-masquerade-cidr", "configure-cbr0", "reconcile-cidr",
	},
	"use --register-with-taints=node.kubernetes.io/unschedulable:NoSchedule": {"register-schedulable"},
	"use --eviction-hard, with nodefs.available": {
		"low-diskspace-threshold-mb", "outofdisk-transition-frequency",
	},
	"use --fail-swap-on":                                             {"experimental-fail-swap-on"},
	"use --allowed-unsafe-sysctls":                                   {"experimental-allowed-unsafe-sysctls"},
	"use --kubelet-cgroups":                                          {"resource-container"},
	"use --system-cgroups":                                           {"system-container"},
	"use --node-status-update-frequency":                             {"node-sync-frequency"},
	"use --kernel-memcg-notification":                                {"experimental-kernel-memcg-notification"},
	"remove it: a device plugin offers GPUs to pods":                 {"experimental-nvidia-gpus"},
	"remove it: profiles are below the folder seccomp of --root-dir": {"seccomp-profile-root"},
	"remove it: the runtime streams to the kubelet alone":            {"redirect-container-streaming"},
	"remove it: logs mask what is secret": {
		"experimental-logging-sanitization", "logging-sanitization",
	},
	"remove it: the node agent makes no such rules": {"iptables-drop-bit", "iptables-masquerade-bit"},
	"remove it: it was for tests of the kubelet":    {"chaos-chance", "really-crash-for-testing"},
	"remove it: the agent runs on the host itself":  {"containerized", "hosts-root"},
	"remove it: it had no effect for years":         {"babysit-daemons", "master-service-namespace"},
	"remove it: the node's programs for mounts need no check": {
		"experimental-check-node-capabilities-before-mount",
	},
})

// removed gives each flag its remedy.
func removed(flags map[string][]string) map[string]string {
	all := map[string]string{}
	for remedy, names := range flags {
		for _, name := range names {
			all[name] = remedy
		}
	}
	return all
}
