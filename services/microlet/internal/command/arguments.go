package command

import (
	"path/filepath"
	"strings"
)

// kubeletName is the name under which the binary is the node agent.
const kubeletName = "kubelet"

// Arguments returns the arguments of a process's command line. Under the name kubelet, which a link gives it, the
// binary is "microlet up": it takes the kubelet's flags without a command, so the units and tools of the kubelet, such
// as kubeadm, need no change. The kubelet has no commands, so a first argument that is no flag is one of microlet's
// under any name: a copy named kubelet starts its services by them.
func Arguments(line []string) []string {
	if len(line) == 0 {
		return nil
	}
	args := line[1:]
	if filepath.Base(line[0]) != kubeletName || len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return args
	}
	return append([]string{"up"}, args...)
}
