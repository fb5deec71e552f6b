package containerlogs

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// ID returns the id, with the runtime's scheme, of the container of the log: the running one's, else the one that ended
// last; with previous, the one before. The error says why there is none.
func ID(p *v1.Pod, name string, previous bool) (string, error) {
	all := slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses,
		p.Status.EphemeralContainerStatuses)
	i := slices.IndexFunc(all, func(s v1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		return "", fmt.Errorf("container %q in pod %q is not available", name, p.Name)
	}
	state, last := all[i].State, all[i].LastTerminationState.Terminated
	ended := func() (string, error) {
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("container %q in pod %q is terminated", name, p.Name)
		}
		return last.ContainerID, nil
	}
	switch {
	case previous:
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, p.Name)
		}
		return last.ContainerID, nil
	case state.Running != nil:
		return all[i].ContainerID, nil
	case state.Terminated != nil:
		if id := state.Terminated.ContainerID; id != "" {
			return id, nil
		}
		return ended() // it ended without having run; the one before may have said why
	case last != nil:
		return ended()
	case state.Waiting != nil:
		why := state.Waiting.Reason
		switch why {
		case "ErrImagePull":
			why = "image can't be pulled"
		case "ImagePullBackOff":
			why = "trying and failing to pull image"
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, p.Name, why)
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, p.Name)
}

// bare is the id without the runtime's scheme.
func bare(id string) string {
	if _, after, found := strings.Cut(id, "://"); found {
		return after
	}
	return id
}
