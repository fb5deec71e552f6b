package pods

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namespaced is a pod with users of its own.
func namespaced(uid types.UID) *v1.Pod {
	p := testPod(uid)
	p.Spec.HostUsers = new(false)
	return p
}

// event reports whether there was an event with this text. It takes all that there were.
func (n *node) event(text string) bool {
	for {
		select {
		case e := <-n.events.Events:
			if strings.Contains(e, text) {
				return true
			}
		default:
			return false
		}
	}
}

// The containers of a pod have the users of their sandbox, those that are started again too.
func TestContainersJoinTheUsersOfTheirSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.users["a"] = 131072
		n.apply(namespaced("a"))
		n.wait(2 * time.Second)
		if !n.running("a") {
			t.Fatalf("status %+v", n.status("a"))
		}
		n.exit("c")
		n.wait(time.Minute)
		created := n.cri.Calls("CreateContainer")
		if len(created) < 2 {
			t.Fatalf("%d containers", len(created))
		}
		want := userNamespace(131072)
		var sandbox string
		for i := range created {
			call := created[i].Request.(*runtimeapi.CreateContainerRequest)
			sandbox = call.GetPodSandboxId()
			for _, o := range []*runtimeapi.NamespaceOption{
				call.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions(),
				call.GetSandboxConfig().GetLinux().GetSecurityContext().GetNamespaceOptions(),
			} {
				if !proto.Equal(o.GetUsernsOptions(), want) {
					t.Errorf("container %d has the users %v", i, o.GetUsernsOptions())
				}
			}
		}
		if got := n.joined["a"]; len(got) < 2 || got[0] != "new" || slices.ContainsFunc(got[1:],
			func(id string) bool { return id != sandbox }) {
			t.Errorf("asked for the users of %q, and the sandbox is %s", got, sandbox)
		}
		if got := testutil.ToFloat64(n.workers.metrics.userNamespaces); got != 1 {
			t.Errorf("%v starts are counted", got)
		}
		n.apply(testPod("b"))
		n.wait(2 * time.Second)
		if len(n.joined["b"]) != 0 || !n.running("b") {
			t.Errorf("a pod with the users of the host: %q", n.joined["b"])
		}
	})
}

// A pod that cannot have users of its own does not get those of the host.
func TestAPodWithoutUsersOfItsOwnWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		n.dispatcher.deps.RuntimeState = noUsers{func() string { return "" }}
		defer n.run()()
		n.dispatcher.SetPod(namespaced("a"), api)
		n.dispatcher.SetPod(testPod("neighbour"), api)
		n.wait(5 * time.Second)
		if !n.event("Warning FailedCreatePodSandBox Failed to create pod sandbox: the handler cannot") {
			t.Error("there is no event")
		}
		if made := len(n.cri.Calls("RunPodSandbox")); made != 1 || !n.running("neighbour") {
			t.Errorf("%d sandboxes", made)
		}
		m := n.workers.metrics
		if testutil.ToFloat64(m.userNamespaceErrors) == 0 ||
			testutil.ToFloat64(m.userNamespaceErrors) != testutil.ToFloat64(m.userNamespaces) {
			t.Errorf("%v errors of %v starts are counted", testutil.ToFloat64(m.userNamespaceErrors),
				testutil.ToFloat64(m.userNamespaces))
		}
	})
}

func TestAPodForWhichNoUsersAreLeftWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.breaks("Of", "a", errors.New("no range is free"))
		n.dispatcher.SetPod(namespaced("a"), api)
		n.wait(5 * time.Second)
		if !n.event("Failed to create pod sandbox: no range is free") || len(n.cri.Calls("RunPodSandbox")) != 0 {
			t.Error("there is no event, or a sandbox")
		}
		n.breaks("Of", "a", nil)
		n.wait(time.Minute)
		if !n.running("a") {
			t.Errorf("status %+v", n.status("a"))
		}
	})
}
