package fields

import (
	"maps"
	"slices"
)

// StopSignal is supported with the gate ContainerStopSignals (KEP-4960).
const StopSignal = "spec.containers.lifecycle.stopSignal"

// gates are the fields that are supported while a feature gate is on.
var gates = map[string][]string{
	"ContainerStopSignals": {StopSignal},
	"EmptyDirVolumeMode":   {"spec.volumes.emptyDir.mode"},
	// KEP-5936
	"AtomicWriteVolumeUserFields": {
		"spec.volumes.configMap.defaultUser", "spec.volumes.configMap.items.user",
		"spec.volumes.downwardAPI.defaultUser", "spec.volumes.downwardAPI.items.user",
		"spec.volumes.secret.defaultUser", "spec.volumes.secret.items.user",
		"spec.volumes.projected.defaultUser",
		"spec.volumes.projected.sources.clusterTrustBundle.user",
		"spec.volumes.projected.sources.configMap.items.user",
		"spec.volumes.projected.sources.downwardAPI.items.user",
		"spec.volumes.projected.sources.podCertificate.user",
		"spec.volumes.projected.sources.secret.items.user",
		"spec.volumes.projected.sources.serviceAccountToken.user",
	},
}

// Gated returns the fields whose gates are on, for Check.
func Gated(enabled func(gate string) bool) []string {
	var fields []string
	for _, gate := range slices.Sorted(maps.Keys(gates)) {
		if enabled(gate) {
			fields = append(fields, gates[gate]...)
		}
	}
	return fields
}
