package runtime

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// withUsers gives the config's sandbox users of its own, from this ID of the host on.
func withUsers(config *runtimeapi.PodSandboxConfig, first uint32) *runtimeapi.PodSandboxConfig {
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: 65536}}
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{
			UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids},
		},
	}}
	return config
}

// The users of what runs are known, also of pods that were not read, and those of what has ended are not.
func TestUserNamespaces(t *testing.T) {
	b := newBench(t, Options{})
	ids := map[types.UID]string{}
	for uid, first := range map[types.UID]uint32{"read": 65536, "unread": 131072, "ended": 196608} {
		id, err := b.rt.RunSandbox(t.Context(), withUsers(b.sandboxConfig(string(uid), 0), first), "", false)
		if err != nil {
			t.Fatal(err)
		}
		ids[uid] = id
	}
	_, err := b.rt.RunSandbox(t.Context(), b.sandboxConfig("plain", 0), "", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.rt.State(t.Context(), "read"); err != nil {
		t.Fatal(err)
	}
	if err := b.fake.StopSandbox(ids["ended"]); err != nil {
		t.Fatal(err)
	}
	got, unread, err := b.rt.UserNamespaces(t.Context())
	if err != nil || len(unread) != 0 {
		t.Fatal(err)
	}
	for uid, first := range map[types.UID]uint32{"read": 65536, "unread": 131072} {
		if n := got[uid]; len(n) != 1 || n[0].GetUids()[0].GetHostId() != first {
			t.Errorf("%s has %v", uid, n)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d pods have users of their own: %v", len(got), got)
	}
	state, err := b.rt.State(t.Context(), "read")
	if err != nil || state.Sandboxes[0].UserNamespace.GetUids()[0].GetHostId() != 65536 {
		t.Errorf("the state has %+v, %v", state, err)
	}
}

// The processes of a container outlive their sandbox's own.
func TestASandboxRunsAsLongAsItsContainers(t *testing.T) {
	container := pod.Container{SandboxID: "a", State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	state := &pod.State{Containers: []pod.Container{container}}
	for _, test := range []struct {
		sandbox pod.Sandbox
		want    bool
	}{{pod.Sandbox{ID: "a"}, true}, {pod.Sandbox{ID: "b"}, false}, {pod.Sandbox{ID: "b", Ready: true}, true}} {
		if got := runs(state, &test.sandbox); got != test.want {
			t.Errorf("%+v runs: %v", test.sandbox, got)
		}
	}
	state.Containers[0].State = runtimeapi.ContainerState_CONTAINER_EXITED
	if runs(state, &pod.Sandbox{ID: "a"}) {
		t.Error("nothing of it runs")
	}
}

// A sandbox that the runtime cannot show, or that it hangs on, takes nothing from what is known of the others.
func TestUserNamespacesBesideABrokenSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		for uid, first := range map[types.UID]uint32{"read": 65536, "broken": 131072} {
			if _, err := b.rt.RunSandbox(t.Context(), withUsers(b.sandboxConfig(string(uid), 0), first), "", false); err != nil {
				t.Fatal(err)
			}
		}
		b.sandbox("plain", 0)
		b.state("read")
		b.state("plain")
		check := func(what string) {
			t.Helper()
			begun := time.Now()
			got, unread, err := b.rt.UserNamespaces(t.Context())
			if err != nil || len(got["read"]) != 1 || len(unread) != 1 || unread["broken"] == nil {
				t.Errorf("%s: %v, unread %v, %v", what, got, unread, err)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("%s: it took %v", what, took)
			}
		}
		b.fake.Fail("PodSandboxStatus", errors.New("broken"))
		check("an error")
		b.fake.Fail("PodSandboxStatus", nil)
		defer b.fake.Hang("PodSandboxStatus")()
		check("a call that hangs")
	})
}
