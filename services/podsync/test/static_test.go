package test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/testing/notifytest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/internal/testing/sockethttp"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// TestAStaticPodComesBack: a manifest that is put back restarts its pod, whenever that happens, and all who keep the
// pod by its UID know it again: the mirror pod in the API, the bus, the runtime.
func TestAStaticPodComesBack(t *testing.T) {
	n, api := newNode(t), newAPIServer(t)
	n.put("a")
	p := n.start("--kubeconfig="+kubeconfig(t, api.server.URL), "--config="+n.config("contentType: application/json"))
	r := n.reads()
	shows := func(want string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("the API shows %s, want %s", api.shows("a-"+bustest.NodeName), want)
			}
		}()
		proctest.Await(t, soon, "the mirror: "+want, func() bool { return api.shows("a-"+bustest.NodeName) == want })
		r.is(t, map[string]string{"a": state(n.runs("a"))})
	}
	shows("api-1 runs, restarted 0 times")
	heard := func(times int) {
		t.Helper()
		proctest.Await(t, soon, "podsync hears of it again", func() bool {
			return strings.Count(p.Log.String(), "pod re-added while terminating") == times
		})
	}

	t.Log("at once")
	n.remove("a")
	n.put("a")
	shows("api-1 runs, restarted 1 times")

	t.Log("while its containers stop")
	stop := n.runtime.Hang("StopContainer")
	n.remove("a")
	proctest.Await(t, soon, "its container is being stopped",
		func() bool { return n.runtime.InFlight("StopContainer") == 1 })
	n.put("a")
	heard(2)
	stop()
	shows("api-1 runs, restarted 2 times")

	t.Log("while what is left of it is removed, when it starts again")
	deleted := api.deletions()
	remove := n.runtime.Hang("RemovePodSandbox")
	n.remove("a")
	proctest.Await(t, soon, "its sandboxes are being removed",
		func() bool { return n.runtime.InFlight("RemovePodSandbox") > 0 })
	n.put("a")
	heard(3)
	remove()
	shows("api-2 runs, restarted 0 times")

	t.Log("and away for good")
	n.remove("a")
	n.gone("a")
	proctest.Await(t, soon, "the mirror is deleted",
		func() bool { return api.shows("a-"+bustest.NodeName) == "no pod" })
	if got := api.deletions() - deleted; got != 2 {
		t.Errorf("%d mirrors deleted, want 2", got)
	}
	r.is(t, map[string]string{})
}

// TestAnAPIServerThatIsAwayIsNoIllness: podsync waits for it and says so, works, and is not to be restarted for it.
func TestAnAPIServerThatIsAwayIsNoIllness(t *testing.T) {
	n := newNode(t)
	n.put("a")
	n.start("--kubeconfig=" + kubeconfig(t, "http://127.0.0.1:1"))
	n.runs("a")
	s := n.Service()
	code, body := sockethttp.Get(t, s.MetricsSocket(role.Podsync), "/healthz")
	if code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz is %d %q", code, body)
	}
}

// TestASourceThatIsAwayIsNoFailedStart: systemd ends a unit that does not say READY within its TimeoutStartSec, and
// with it each pull, mount and hook that is under way. podsync works without the API server, which may be a pod of its
// own.
func TestASourceThatIsAwayIsNoFailedStart(t *testing.T) {
	n := newNode(t)
	supervisor := notifytest.New(t)
	n.put("a")
	n.start("--kubeconfig=" + kubeconfig(t, "http://127.0.0.1:1"))
	n.runs("a")
	said := supervisor.Until(run.NotifyStatus + "waiting for pod sources: api")
	if !slices.Contains(said, run.NotifyReady) {
		t.Errorf("podsync runs its static pods and has not said READY, but %q", said)
	}
	s := n.Service()
	conn, err := unixgrpc.Dial(s.Socket(role.Podsync), unixgrpc.DialOptions{Server: role.Podsync, Peers: s.Peers()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || answer.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("its health is %v, %v: some of its pods are not known", answer.GetStatus(), err)
	}
}
