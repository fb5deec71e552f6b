package twins

import (
	"testing"

	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// TestDrawnPodsAreValid shows that the API server would take the pods of the inputs.
func TestDrawnPodsAreValid(t *testing.T) {
	for input := range uint64(2000) {
		p := drawPod(newSource(1, input))
		corev1.SetObjectDefaults_Pod(p)
		var internal core.Pod
		if err := corev1.Convert_v1_Pod_To_core_Pod(p, &internal, nil); err != nil {
			t.Fatal(err)
		}
		opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
		if errs := validation.ValidatePodSpec(&internal.Spec, &internal.ObjectMeta, nil, opts); len(errs) > 0 {
			t.Fatalf("input %d: %v\n%s", input, errs.ToAggregate(), situation{Pod: p}.String())
		}
	}
}
