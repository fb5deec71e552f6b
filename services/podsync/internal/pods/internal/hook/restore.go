package hook

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// restore returns the preStop hook of a container and the ports that the hook may name, from the container's
// annotations, because the object of the pod is gone. It returns nil if the container has no such hook.
func (r *Runner) restore(uid types.UID, c *pod.Container) (*v1.Container, error) {
	annotations, err := criconfig.RestoreAnnotations(r.opts.PodsDir, uid, c.Name, c.Annotations)
	if err != nil {
		return nil, err
	}
	text, ok := annotations[pod.AnnotationPreStopHandler]
	if !ok {
		return nil, nil
	}
	spec := &v1.Container{Name: c.Name, Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}}}
	if err := json.Unmarshal([]byte(text), spec.Lifecycle.PreStop); err != nil {
		return nil, fmt.Errorf("annotation %s of container %s: %w", pod.AnnotationPreStopHandler, c.ID, err)
	}
	if text, ok := annotations[pod.AnnotationPorts]; ok {
		if err := json.Unmarshal([]byte(text), &spec.Ports); err != nil {
			return nil, fmt.Errorf("annotation %s of container %s: %w", pod.AnnotationPorts, c.ID, err)
		}
	}
	return spec, nil
}
