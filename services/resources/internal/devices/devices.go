// Package devices hands out the devices of device plugins to containers, as the kubelet's device manager does.
//
// A plugin registers with the name of an extended resource, and says from then on which devices it has and which of
// them are healthy. A pod is granted the devices that its containers ask for, all of them or none. What is granted is
// in the kubelet's file kubelet_internal_checkpoint before a caller learns of it, so that a device has one owner
// whatever ends when.
//
// No plugin is called under a lock. Devices are reserved for a pod first, then the plugins are asked, and then the
// devices are granted or free again. A plugin that hangs holds up the pods that need it, and no other.
//
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package devices

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/resources/internal/devices/internal/checkpoint"
)

// Needed reports whether there is work for a Manager before anything connects: the checkpoint file of the folder says
// that pods have devices, or that plugins were registered.
func Needed(folder string) bool { return checkpoint.Used(folder) }

// Options say how a Manager works.
type Options struct {
	// Folder is the absolute path of the kubelet's folder device-plugins, in which its checkpoint file is. It exists.
	Folder string
	// Root is the kubelet's root folder. A plugin may have its socket below it or below Folder, and on no path that a
	// symbolic link is on. Default: only Folder.
	Root string
	// Grace is how long the node keeps the capacity of a resource whose last plugin went away. Default: 5 minutes, as
	// the kubelet.
	Grace time.Duration
	// Wait is how long a pod waits for the plugin of a resource that the node had. Default: 3 minutes.
	Wait time.Duration
	// Metrics gets kubelet_device_plugin_registration_total and kubelet_device_plugin_alloc_duration_seconds. Nil counts
	// nowhere.
	Metrics prometheus.Registerer
	// Log gets what plugins do. Default: slog's.
	Log *slog.Logger
	// Changed is called after each change, by one goroutine at a time and without a lock. It takes little time. Nil: no
	// call.
	Changed func(Change)
}

// Change says what another call of the Manager returns now than before.
type Change struct {
	// Node: the answer of Node differs.
	Node bool
	// Pods are those of which the answer of Pod differs, in their order: granted, forgotten, or with other health.
	Pods []types.UID
}

// Placed are the pods that have a place on the node. What others were granted is free.
type Placed struct {
	UIDs []types.UID
	// At is when they were looked up, by one clock for all calls: a pod that asks later is none of those others. Zero: as
	// the call began.
	At time.Time
}
