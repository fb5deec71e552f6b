package status

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStopSignal(t *testing.T) {
	for signal, want := range map[runtimeapi.Signal]v1.Signal{
		runtimeapi.Signal_SIGNAL_SIGUSR1: v1.SIGUSR1, runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3: v1.SIGRTMINPLUS3,
		runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS2: v1.SIGRTMAXMINUS2, runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT: "",
	} {
		for _, on := range []bool{true, false} {
			c := ctr("1", "a", runtimeapi.ContainerState_CONTAINER_RUNNING, 0)
			c.StopSignal = signal
			in := inputs()
			in.StopSignals = on
			got := Generate(testPod("a"), ready(c), in).ContainerStatuses[0].StopSignal
			if shown := on && want != ""; (got != nil) != shown || shown && *got != want {
				t.Errorf("%s, gate %v: %v", signal, on, got)
			}
		}
	}
}
