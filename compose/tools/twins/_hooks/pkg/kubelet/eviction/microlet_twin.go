package eviction

import (
	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

// TwinRank is the function that buildSignalToRankFunc has for a signal.
func TwinRank(signal string, imageFs, split bool, pods []*v1.Pod, stats []statsapi.PodStats) {
	buildSignalToRankFunc(imageFs, split)[evictionapi.Signal(signal)](pods, cachedStatsFunc(stats))
}
