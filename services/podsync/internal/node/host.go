package node

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/cgroups"
)

// The kubelet's messages.
const (
	messageCgroupV1 = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. " +
		"Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"
	messageSwapped = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) " +
		"might be swapped to disk and should no longer be considered secure."
)

// Host is what the operator of a node learns of its machine, as from the kubelet.
type Host struct {
	unified bool
	// swaps is what the kernel lists as swap, and keepsOut says whether memory of volumes can be kept out of it.
	swaps    string
	keepsOut func() bool
	events   record.EventRecorder
	node     *v1.ObjectReference
	log      *slog.Logger
}

// NewHost reads what the machine has. A kernel without swap has no /proc/swaps.
func (n *Node) NewHost(keepsOut func() bool, events record.EventRecorder, metrics prometheus.Registerer,
	log *slog.Logger) (*Host, error) {
	h := &Host{unified: cgroups.Unified(), keepsOut: keepsOut, events: events, node: n.Reference, log: log}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		log.Debug("swap is not known", logkey.Err, err)
	}
	h.swaps = string(swaps)
	version := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubelet_cgroup_version", Help: "cgroup version on the hosts.",
	})
	version.Set(1)
	if h.unified {
		version.Set(2)
	}
	if err := metrics.Register(version); err != nil {
		return nil, fmt.Errorf("register metrics of the host: %w", err)
	}
	return h, nil
}

// Report records the Events.
func (h *Host) Report() {
	if !h.unified {
		h.warn("CgroupV1", messageCgroupV1)
	}
	if h.swapIsOn() && !h.keepsOut() {
		h.warn("PossibleMemoryBackedVolumesOnDisk", messageSwapped)
	}
}

func (h *Host) warn(reason, message string) {
	h.log.Warn(message)
	h.events.Event(h.node, v1.EventTypeWarning, reason, message)
}

// swapIsOn reports whether there is a line below the title.
func (h *Host) swapIsOn() bool { return strings.Count(strings.TrimSpace(h.swaps), "\n") > 0 }
