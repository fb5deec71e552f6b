package scene

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
)

// Explanation is what is read of "microlet explain -o json".
type Explanation struct {
	Verdict string
	Causes  []struct{ Part, Reason, Message string }
}

// Explain asks "microlet explain" for a pod.
func (s *Scene) Explain(pod string) (x Explanation, err error) {
	out, err := exec.CommandContext(s.T.Context(), s.Executable, "explain", pod, "-n", s.Namespace, "-o", "json",
		"--runtime-dir="+s.RuntimeDir()).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return x, err
	}
	return x, json.Unmarshal(out, &x)
}
