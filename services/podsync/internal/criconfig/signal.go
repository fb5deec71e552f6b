package criconfig

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
)

// inCRI spells the API's signals as CRI does: SIGRTMIN+3 is SIGNAL_SIGRTMINPLUS3 there.
var inCRI = strings.NewReplacer("+", "PLUS", "-", "MINUS")

// stopSignal is what ends the container; the runtime's default leaves that to its image.
func stopSignal(c *v1.Container, n *Node) runtimeapi.Signal {
	if !n.StopSignals || c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+inCRI.Replace(string(*c.Lifecycle.StopSignal))])
}
