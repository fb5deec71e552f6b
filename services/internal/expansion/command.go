package expansion

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Command returns a command with the references to the container's own variables replaced. As in the
// kubelet, only variables with a value in the pod are known: one with a value from elsewhere (valueFrom) counts as
// empty, and those of envFrom are unknown. A command that execve(2) would not take is an error.
func Command(command []string, env []v1.EnvVar) ([]string, error) {
	var values map[string]string
	value := func(name string) (string, bool) {
		if values == nil {
			values = make(map[string]string, len(env))
			for i := range env {
				values[env[i].Name] = env[i].Value
			}
		}
		v, ok := values[name]
		return v, ok
	}
	var sum Strings
	words, err := sum.Words(command, value)
	if err != nil {
		return nil, fmt.Errorf("exec.command%w", err)
	}
	return words, nil
}
