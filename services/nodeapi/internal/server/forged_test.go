package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
)

// status is the status of a pod with a running container "c", as the bus has it.
func (n *node) status(uid types.UID) v1.PodStatus {
	return *n.known.pods[string(uid)].Status.DeepCopy()
}

// TestPodsThatTheBusForges has the bus say of a pod, for which the caller was authorized, what is another pod's: its
// UID, or the ID of its container. The other pod is of another namespace, or of the same.
func TestPodsThatTheBusForges(t *testing.T) {
	for name, forge := range map[string]func(mine, victim v1.Pod) v1.Pod{
		"the UID":                 func(mine, victim v1.Pod) v1.Pod { mine.UID = victim.UID; return mine },
		"the ID of the container": func(mine, _ v1.Pod) v1.Pod { return mine },
	} {
		for _, namespace := range []string{"kube-system", "ns"} {
			n := newNode(t, nil)
			victim := pod("victim", "c")
			victim.Namespace = namespace
			n.add(t, victim)
			if err := os.WriteFile(filepath.Join(n.logs, "c.log"),
				[]byte("2026-01-01T00:00:00.000000000Z stdout F secret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			mine := forge(pod("mine", "c"), victim)
			mine.Status = n.status(victim.UID)
			mine.Status.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{
				ContainerID: mine.Status.ContainerStatuses[0].ContainerID,
			}
			n.known.put(&mine)
			what := name + " of a pod in " + namespace
			for _, request := range []string{
				"POST /exec/ns/mine/c?output=1&command=id", "POST /exec/ns/mine/UID/c?output=1&command=id",
				"POST /attach/ns/mine/c?output=1", "POST /attach/ns/mine/UID/c?output=1",
				"POST /portForward/ns/mine?port=1", "POST /portForward/ns/mine/UID?port=1",
				"POST /run/ns/mine/c?cmd=id", "POST /run/ns/mine/UID/c?cmd=id", "POST /checkpoint/ns/mine/c",
				"GET /containerLogs/ns/mine/c", "GET /containerLogs/ns/mine/c?follow=true",
				"GET /containerLogs/ns/mine/c?previous=true",
			} {
				n.runtime.ForgetCalls()
				method, path, _ := strings.Cut(strings.ReplaceAll(request, "UID", string(mine.UID)), " ")
				code, body, _ := serve(t, n.Handler(decision{}), method, path)
				if strings.Contains(body, "secret") || !strings.Contains(path, "/containerLogs/") && code != 500 {
					t.Errorf("%s: %s: %d %q", what, request, code, body)
				}
				if calls := n.runtime.Calls("Exec", "Attach", "PortForward", "ExecSync", "CheckpointContainer"); len(calls) > 0 {
					t.Errorf("%s: %s: the runtime is asked for %s", what, request, calls[0].Method)
				}
			}
			if got := testutil.ToFloat64(n.foreign); got != 3 {
				t.Errorf("%s: %v logs are counted, want 3", what, got)
			}
		}
	}
}

// TestStaticPodsAreTheirOwn has callers name a static pod by its own UID, by its mirror's, and by none.
func TestStaticPodsAreTheirOwn(t *testing.T) {
	n := newNode(t, nil)
	static := pod("static-node", "c")
	static.UID = types.UID("0123456789abcdef0123456789abcdef")
	n.add(t, static)
	static.Status = n.status(static.UID)
	static.Annotations = map[string]string{podutil.ConfigSourceAnnotation: "file"}
	n.known.put(&static)
	if err := os.WriteFile(filepath.Join(n.logs, "c.log"),
		[]byte("2026-01-01T00:00:00.000000000Z stdout F one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"", "/" + string(static.UID), "/5a0d04a5-0d3b-4b4d-8f5b-6a0d3f3b1c11"} {
		if code, body, _ := serve(t, n.Handler(decision{refusal: (*auth.Refusal)(nil)}), "POST",
			"/run/ns/static-node"+uid+"/c?cmd=id"); code != 200 {
			t.Errorf("UID %q: %d %s", uid, code, body)
		}
	}
	if _, body, _ := serve(t, n.Handler(decision{}), "GET", "/containerLogs/ns/static-node/c"); body != "one\n" {
		t.Errorf("its log is %q", body)
	}
}
