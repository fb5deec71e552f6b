package kubeletconfig

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/component-base/featuregate"

	"github.com/microlet/microlet/services/internal/kubeversion"
)

// Gates that this package or a service reads. All others of the kubelet are known, checked, and without effect.
const (
	gateCustomCPUCFSQuotaPeriod      = "CustomCPUCFSQuotaPeriod"
	gateCrashLoopBackOffMax          = "KubeletCrashLoopBackOffMax"
	gateEnsureSecretPulledImages     = "KubeletEnsureSecretPulledImages"
	gateGracefulNodeShutdown         = "GracefulNodeShutdown"
	gateGracefulNodeShutdownPriority = "GracefulNodeShutdownBasedOnPodPriority"
	gateImageMaximumGCAge            = "ImageMaximumGCAge"
	gateLoggingAlpha                 = "LoggingAlphaOptions"
	gateLoggingBeta                  = "LoggingBetaOptions"
	gateMemoryQoS                    = "MemoryQoS"
	gateNodeLogQuery                 = "NodeLogQuery"
	gateNodeSwap                     = "NodeSwap"
	gateQOSReserved                  = "QOSReserved"
	gateRotateServerCertificate      = "RotateKubeletServerCertificate"
	gateDefaultPodSysctls            = "DefaultPodSysctls"
	gateTopologyManagerOptions       = "TopologyManagerPolicyOptions"
	gateWebSockets                   = "ExtendWebSocketsToKubelet"
	gateRestartAllContainers         = "RestartAllContainersOnContainerExits"
	gateResizeOfInitContainers       = "InPlacePodVerticalScalingInitContainers"
	gateResizeOfPodLevel             = "InPlacePodLevelResourcesVerticalScaling"
)

// gatesJSON are the kubelet's gates as of the pinned version; compose/tools/kubeletfacts writes it.
//
//go:embed upstream/gates.json
var gatesJSON []byte

// gateFact is one gate of the kubelet.
type gateFact struct {
	Name      string   `json:"name"`
	Default   bool     `json:"default"`
	Stage     string   `json:"stage"`
	Locked    bool     `json:"locked,omitempty"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

var knownGates = sync.OnceValue(func() map[string]gateFact {
	var list []gateFact
	if err := json.Unmarshal(gatesJSON, &list); err != nil {
		panic(fmt.Sprintf("kubeletconfig: upstream/gates.json: %v", err)) // embedded, and read by the tests
	}
	gates := make(map[string]gateFact, len(list))
	for _, g := range list {
		gates[g.Name] = g
	}
	return gates
})

// baseGate are the kubelet's gates with none set.
var baseGate = sync.OnceValue(func() featuregate.MutableVersionedFeatureGate {
	specs := map[featuregate.Feature]featuregate.FeatureSpec{}
	dependencies := map[featuregate.Feature][]featuregate.Feature{}
	stages := map[string]featuregate.FeatureSpec{
		"ALPHA":      {PreRelease: featuregate.Alpha},
		"BETA":       {PreRelease: featuregate.Beta},
		"DEPRECATED": {PreRelease: featuregate.Deprecated},
	}
	for name, g := range knownGates() {
		if allGates(name) {
			continue // every gate of the library knows these
		}
		spec := stages[g.Stage] // GA is the empty string
		spec.Default, spec.LockToDefault = g.Default, g.Locked
		specs[featuregate.Feature(name)] = spec
		for _, d := range g.DependsOn {
			dependencies[featuregate.Feature(name)] = append(dependencies[featuregate.Feature(name)],
				featuregate.Feature(d))
		}
	}
	gate := featuregate.NewFeatureGate()
	if err := errors.Join(gate.Add(specs), gate.AddDependencies(dependencies)); err != nil {
		panic(fmt.Sprintf("kubeletconfig: upstream/gates.json: %v", err)) // embedded, and read by the tests
	}
	return gate
})

// newGate returns the kubelet's gates with the given ones set. Names that are unknown or locked are left out:
// validateGates reports them.
func newGate(set map[string]bool) (featuregate.FeatureGate, error) {
	usable := map[string]bool{}
	for name, on := range set {
		if g, known := knownGates()[name]; known && (!g.Locked || g.Default == on) {
			usable[name] = on
		}
	}
	gate := baseGate().DeepCopy()
	// The library's own lines about each gate would go past the service's log.
	quiet := gate.(featuregate.MutableFeatureGateWithLogger)
	if err := quiet.SetFromMapWithLogger(logr.Discard(), usable); err != nil {
		return nil, fmt.Errorf("set feature gates: %w", err)
	}
	return gate, nil
}

func allGates(name string) bool { return name == "AllAlpha" || name == "AllBeta" }

// gateEnabled reports whether one gate is on when the given ones are set.
func gateEnabled(set map[string]bool, name string) bool {
	g, known := knownGates()[name]
	if !known {
		panic("kubeletconfig: " + name + " is no feature gate of the kubelet")
	}
	if on, given := set[name]; given && !g.Locked {
		return on
	}
	if on, given := set["All"+map[string]string{"ALPHA": "Alpha", "BETA": "Beta"}[g.Stage]]; given && !g.Locked {
		return on
	}
	return g.Default
}

// validateGates refuses what the kubelet refuses: unknown gates, changes to locked ones, a gate without those that it
// depends on. It also refuses gates whose features would change pods that run, and are not built.
func validateGates(p *problems, set map[string]bool) {
	names := slices.Sorted(maps.Keys(knownGates()))
	for _, name := range slices.Sorted(maps.Keys(set)) {
		g, known := knownGates()[name]
		switch {
		case !known:
			remedy := "remove it"
			if near := nearest(name, names); near != "" {
				remedy = fmt.Sprintf("write %q if that was meant, otherwise remove it", near)
			}
			p.add("featureGates."+name, set[name], "it is no feature gate of kubelet "+kubeversion.MajorMinor, remedy)
		case g.Locked && set[name] != g.Default:
			p.add("featureGates."+name, set[name], fmt.Sprintf("the gate is locked to %t", g.Default), "remove it")
		case refusedGates[name] && set[name]:
			p.add("featureGates."+name, true, notBuiltGate, notBuiltRemedy)
		}
	}
	if _, err := newGate(set); err != nil {
		p.add("featureGates", nil, oneLine(err), "turn on the gates that it depends on, or it off")
	}
}
