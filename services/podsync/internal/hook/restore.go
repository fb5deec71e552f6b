package hook

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/podconfig"
)

// Restore returns what the annotations of a container tell of its preStop hook, with the
// ports that it may name, for a container whose pod nobody has any more. It returns nil
// if the container has no such hook.
func Restore(c *pod.Container) (*v1.Container, error) {
	text, ok := c.Annotations[podconfig.PreStopHandlerAnnotation]
	if !ok {
		return nil, nil
	}
	spec := &v1.Container{Name: c.Name, Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}}}
	if err := json.Unmarshal([]byte(text), spec.Lifecycle.PreStop); err != nil {
		return nil, fmt.Errorf("annotation %s of container %s: %w", podconfig.PreStopHandlerAnnotation, c.ID, err)
	}
	if text, ok := c.Annotations[podconfig.PortsAnnotation]; ok {
		if err := json.Unmarshal([]byte(text), &spec.Ports); err != nil {
			return nil, fmt.Errorf("annotation %s of container %s: %w", podconfig.PortsAnnotation, c.ID, err)
		}
	}
	return spec, nil
}
