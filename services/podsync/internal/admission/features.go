package admission

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/podutil"
)

// PodLevelResources rejects pods with resources of their own while the feature gate of
// that name is off.
type PodLevelResources struct{ Enabled bool }

// Admit implements Handler.
func (h PodLevelResources) Admit(_ context.Context, a *Attributes) Result {
	if h.Enabled || !resourcehelper.IsPodLevelResourcesSet(a.Pod) {
		return Result{}
	}
	return Result{Reason: "PodLevelResourcesNotSupported", Message: "PodLevelResources feature gate is disabled"}
}

// DeclaredFeatures rejects pods that need a feature which nodes declare one by one
// (KEP-5328) and this one does not have.
type DeclaredFeatures struct {
	has     nodedeclaredfeatures.FeatureSet
	version *version.Version
}

// NewDeclaredFeatures takes the features that this node has, by the names that the
// Node's status declares them with, and the kubelet's version.
func NewDeclaredFeatures(declared []string, kubelet string) (*DeclaredFeatures, error) {
	v, err := version.ParseSemantic(kubelet)
	if err != nil {
		return nil, fmt.Errorf("kubelet version: %w", err)
	}
	return &DeclaredFeatures{has: nodedeclaredfeatures.DefaultFramework.TryMap(declared), version: v}, nil
}

// Admit implements Handler.
func (h *DeclaredFeatures) Admit(_ context.Context, a *Attributes) Result {
	const reason = "PodFeatureUnsupported"
	needs, err := nodedeclaredfeatures.DefaultFramework.InferForPodScheduling(
		&types.PodInfo{Spec: &a.Pod.Spec, Status: &a.Pod.Status}, h.version,
	)
	if err != nil {
		return Result{Reason: reason, Message: fmt.Sprintf("Failed to infer pod's feature requirements: %v", err)}
	}
	lacks, err := h.lacks(needs)
	switch {
	case err != nil:
		return Result{
			Reason:  reason,
			Message: fmt.Sprintf("Failed to match pod's feature requirements against the node: %v", err),
		}
	case lacks != "":
		return Result{Reason: reason, Message: lacks}
	}
	return Result{}
}

// Update returns why the node cannot do what a newer version of a pod needs; empty if it can.
func (h *DeclaredFeatures) Update(old, newer *v1.Pod) string {
	if len(old.Spec.InitContainers) != len(newer.Spec.InitContainers) {
		return "" // no API server lets them change, and the library compares them by their places
	}
	needs, err := nodedeclaredfeatures.DefaultFramework.InferForPodUpdate(
		&types.PodInfo{Spec: &old.Spec, Status: &old.Status}, &types.PodInfo{Spec: &newer.Spec, Status: &newer.Status},
		h.version,
	)
	if err != nil {
		return fmt.Sprintf("Failed to infer the feature requirements of the pod's update: %v", err)
	}
	lacks, err := h.lacks(needs)
	if err != nil {
		return fmt.Sprintf("Failed to match pod's feature requirements against the node: %v", err)
	}
	return lacks
}

// lacks says which of these features the node lacks; empty if none.
func (h *DeclaredFeatures) lacks(needs nodedeclaredfeatures.FeatureSet) (string, error) {
	if needs.IsEmpty() {
		return "", nil
	}
	match, err := nodedeclaredfeatures.DefaultFramework.MatchNodeFeatureSet(needs, h.has)
	if err != nil || match.IsMatch {
		return "", err
	}
	return "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", "), nil
}

// Pressure keeps pods off a node that runs out of something: all but critical ones, and
// when only memory runs out all that request none. A condition that is not known is none.
type Pressure struct {
	// Under are the pressure conditions that the node has; it answers at once. Nil: none.
	Under func() []v1.NodeConditionType
}

// Admit implements Handler.
func (h Pressure) Admit(_ context.Context, a *Attributes) Result {
	var under []v1.NodeConditionType
	if h.Under != nil {
		under = h.Under()
	}
	if len(under) == 0 || podutil.IsCritical(a.Pod) {
		return Result{}
	}
	if len(under) == 1 && under[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if podutil.QOSClass(a.Pod) != v1.PodQOSBestEffort ||
			corev1helpers.TolerationsTolerateTaint(klog.Background(), a.Pod.Spec.Tolerations, taint, false) {
			return Result{}
		}
	}
	return Result{Reason: "Evicted", Message: fmt.Sprintf("The node had condition: %v. ", under)}
}
