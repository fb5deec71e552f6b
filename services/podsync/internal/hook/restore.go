package hook

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/labels"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// Restore returns what the annotations of a container say about its preStop hook, with the
// ports that it may name, for a container whose pod nobody has any more. It returns nil
// if the container has no such hook.
func Restore(c *pod.Container) (*v1.Container, error) {
	text, ok := c.Annotations[labels.ContainerPreStopHandler]
	if !ok {
		return nil, nil
	}
	spec := &v1.Container{Name: c.Name, Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}}}
	if err := json.Unmarshal([]byte(text), spec.Lifecycle.PreStop); err != nil {
		return nil, fmt.Errorf("annotation %s of container %s: %w", labels.ContainerPreStopHandler, c.ID, err)
	}
	if text, ok := c.Annotations[labels.ContainerPorts]; ok {
		if err := json.Unmarshal([]byte(text), &spec.Ports); err != nil {
			return nil, fmt.Errorf("annotation %s of container %s: %w", labels.ContainerPorts, c.ID, err)
		}
	}
	return spec, nil
}
