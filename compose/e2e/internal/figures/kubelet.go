package figures

import (
	"regexp"
	"strings"
	"time"
)

// closeness is how far apart the figures of a load that does not change may be.
const closeness = 0.05

// SummaryRules say how close summaries of the same pods must be, where the pods are at rest.
var SummaryRules = []Rule{
	Moving(`\.time$`),
	NearTime(`\.startTime$`, 2*time.Second),
	// The node, the agent and the runtime are never at rest.
	Exact(`^node\.(nodeName|fs\.(capacityBytes|inodes)|runtime\.\w+\.(capacityBytes|inodes))$`),
	Near(`^node\.(fs|runtime\.\w+)\.`, closeness, 1<<30),
	Moving(`^node\.(systemContainers\[\w+\]\.)?(cpu|memory|network|rlimit|swap|io)\.`),
	// What an idle process uses in a moment is noise. How much it used in all is not.
	Moving(`\.usageNanoCores$`),
	Near(`\.usageCoreNanoSeconds$`, closeness, 5e7),
	Moving(`\.psi\.`),
	Near(`\.(pageFaults|majorPageFaults)$`, closeness, 2000),
	// The kernel takes the page cache back when it likes, and least of all what is in use, which the working set has.
	Near(`\.memory\.usageBytes$`, closeness, 32<<20),
	Near(`\.memory\.\w+Bytes$`, closeness, 2<<20),
	Near(`\.(rootfs|logs|ephemeral-storage|volume\[[^]]+\])\.(available|capacity)Bytes$`, closeness, 1<<26),
	Near(`\.(rootfs|logs|ephemeral-storage|volume\[[^]]+\])\.inodes(Free)?$`, closeness, 1000),
	Near(`\.(rootfs|logs|ephemeral-storage|volume\[[^]]+\])\.inodesUsed$`, closeness, 5),
	Near(`\.usedBytes$`, closeness, 64<<10),
	Near(`\.[rt]xBytes$`, closeness, 4<<10),
	Near(`\.process_count$`, closeness, 1),
}

// MetricRules say the same of pages of metrics.
var MetricRules = []Rule{
	Exact(`^(TYPE|HELP|timestamps) `),
	Near(`^container_(start|creation)_time_seconds\{`, 0, 2),
	Moving(`^container_last_seen\{`),
	// The node and the cgroups above the pods are never at rest.
	Exact(`^machine_`),
	Moving(`^node_`),
	Moving(`\bnamespace=""`),
	Near(`^(container|pod)_cpu_\w*seconds_total\{`, closeness, 0.05),
	Moving(`^container_pressure_`),
	Near(`^container_cpu_(cfs_\w*|load_\w*)\{`, closeness, 20),
	Near(`^container_memory_(failures_total|failcnt)\{`, closeness, 2000),
	Near(`^container_memory_(usage_bytes|cache|total_\w+|mapped_file)\{`, closeness, 32<<20),
	Near(`^(container|pod)_memory_\w+\{`, closeness, 2<<20),
	Near(`^container_network_\w*bytes_total\{`, closeness, 4<<10),
	Near(`^container_network_\w+\{`, closeness, 40),
	Near(`^container_blkio_\w+\{`, closeness, 1<<20),
	Near(`^container_fs_\w*bytes(_total)?\{`, closeness, 1<<20),
	Near(`^container_fs_\w*seconds_total\{`, closeness, 1),
	Near(`^container_fs_\w+\{`, closeness, 100),
	Near(`^container_(file_descriptors|sockets|processes|threads)\{`, closeness, 3),
	Near(`^container_tasks_state\{`, closeness, 3),
}

// MeantInSummary are differences of summaries that are meant. docs/figures.md lists them.
var MeantInSummary = []Explanation{
	Explain(`^node\.systemContainers\[kubelet\]\.`, OnlyMicrolet,
		"without kubeletCgroups, the kubelet shows its own cgroup where the hierarchy of systemd has it, and "+
			"microlet everywhere"),
}

// MeantFromCRI are further differences that are meant with the feature gate PodAndContainerStatsFromCRI.
// docs/figures.md lists them.
var MeantFromCRI = []Explanation{
	Explain(`^pods\[.*\]\.containers\[.*\]\.(swap|io)\b`, OnlyKubelet,
		"the kubelet says 0 where the runtime says nothing"),
	Explain(`^pods\[.*\]\.swap\b`, nil, "the swap of a pod is the sum of its containers'"),
	Explain(`^((TYPE|HELP|timestamps) )?(container|pod)_swap_(usage|limit)_bytes\b`, OnlyKubelet,
		"the kubelet says 0 where the runtime says nothing"),
}

// MeantInMetrics are differences of pages of metrics that are meant, besides that of WithoutSandboxImages.
// docs/figures.md lists them.
var MeantInMetrics = []Explanation{
	Explain(`^((TYPE|HELP|timestamps) )?container_sockets\b`, OnlyKubelet,
		"to see which descriptors of another user's process are sockets needs CAP_SYS_PTRACE, which stats does not have"),
}

// image is the label of a series that names an image.
var image = regexp.MustCompile(`image="[^"]+"`)

// WithoutSandboxImages returns the facts of a page without the images of sandboxes. The kubelet's cAdvisor asks
// containerd for them by an interface of its own. CRI returns a sandbox's image only in its verbose answers, which have
// secrets of the runtime, so stats does not get them.
func WithoutSandboxImages(page Facts) Facts {
	all := Facts{}
	for path, fact := range page {
		if strings.Contains(path, `container="",`) {
			path = image.ReplaceAllString(path, `image=""`)
		}
		all[path] = fact
	}
	return all
}
