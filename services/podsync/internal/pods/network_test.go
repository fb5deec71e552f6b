package pods

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestAPodWaitsForTheNetworkUnlessItIsTheHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		var up atomic.Bool
		n.dispatcher.deps.RuntimeState = runtimeState(func() string {
			if up.Load() {
				return ""
			}
			return "cni plugin not initialized"
		})
		defer n.run()()
		host := testPod("host")
		host.Spec.HostNetwork = true
		n.dispatcher.SetPod(host, api)
		n.dispatcher.SetPod(testPod("a"), api)
		n.wait(3 * time.Second)
		if n.running("a") {
			t.Fatal("a pod started without a network")
		}
		if len(n.cri.Calls("RunPodSandbox")) == 0 {
			t.Fatal("the pod on the host's network was held back too")
		}
		select {
		case e := <-n.events.Events:
			for !strings.Contains(e, "NetworkNotReady network is not ready: cni plugin not initialized") {
				e = <-n.events.Events
			}
			if !strings.HasPrefix(e, v1.EventTypeWarning) {
				t.Errorf("event %q", e)
			}
		default:
			t.Fatal("no event")
		}
		up.Store(true)
		n.wait(10 * time.Second)
		if !n.running("a") {
			t.Fatal("the pod does not start although the network is there")
		}
	})
}
