package criconfig

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStopSignal(t *testing.T) {
	for signal, want := range map[v1.Signal]runtimeapi.Signal{
		v1.SIGUSR1: runtimeapi.Signal_SIGNAL_SIGUSR1, v1.SIGRTMINPLUS3: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3,
		v1.SIGRTMAXMINUS2: runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS2, v1.SIGTERM: runtimeapi.Signal_SIGNAL_SIGTERM,
	} {
		c := &v1.Container{Lifecycle: &v1.Lifecycle{StopSignal: &signal}}
		if got := stopSignal(c, &Node{StopSignals: true}); got != want {
			t.Errorf("%s: %s", signal, got)
		}
		if got := stopSignal(c, &Node{}); got != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
			t.Errorf("%s with the gate off: %s", signal, got)
		}
	}
	if got := stopSignal(&v1.Container{}, &Node{StopSignals: true}); got != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		t.Errorf("none: %s", got)
	}
}
