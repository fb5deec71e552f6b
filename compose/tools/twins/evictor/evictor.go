// Package evictor opens the evictor's order of pods to the comparison with the kubelet's.
package evictor

import (
	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/evictor/internal/rank"
	"github.com/microlet/microlet/services/evictor/internal/signal"
	"github.com/microlet/microlet/services/evictor/internal/threshold"
)

// Rank is rank.By.
func Rank(of string, imageFs, split bool, pods []*v1.Pod, figures func(*v1.Pod) *statsapi.PodStats) {
	rank.By(signal.Signal(of), threshold.Layout{ImageFs: imageFs, SplitContainerFs: split}, pods, figures)
}
