package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/internal/testing/logindtest"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// shutdownConfig has three phases.
const shutdownConfig = `contentType: application/json
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 20}
- {priority: 1000, shutdownGracePeriodSeconds: 20}
- {priority: 2000000000, shutdownGracePeriodSeconds: 20}`

// create adds a pod of the node to the API.
func (a *apiserver) create(name string, priority int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put("ADDED", "ns/"+name, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
		},
		Spec: v1.PodSpec{
			NodeName: bustest.NodeName, Priority: &priority, RestartPolicy: v1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: new(int64(30)), DNSPolicy: v1.DNSDefault,
			EnableServiceLinks: new(false), SecurityContext: &v1.PodSecurityContext{},
			Containers: []v1.Container{{
				Name: "c-" + name, Image: image, ImagePullPolicy: v1.PullIfNotPresent,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
			}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	})
}

// phase is a pod's phase and reason.
func (a *apiserver) phase(name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods["ns/"+name]
	if p == nil {
		return "no pod"
	}
	return strings.TrimSpace(string(p.Status.Phase) + " " + p.Status.Reason)
}

func (a *apiserver) reaches(t *testing.T, name, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("pod %s is %q, want %q", name, a.phase(name), want)
		}
	}()
	proctest.Await(t, soon, name+" is "+want, func() bool { return a.phase(name) == want })
}

// failures are the names of the pods in the order in which the API learned that they failed.
func (a *apiserver) failures() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	failed := map[string]bool{}
	for _, e := range a.events {
		if e.Object.Status.Phase == v1.PodFailed && !failed[e.Object.Name] {
			failed[e.Object.Name] = true
			names = append(names, e.Object.Name)
		}
	}
	return names
}

const ended = "Failed Terminated"

func TestAShutdownEndsPodsByPriority(t *testing.T) {
	l := logindtest.Start(t)
	l.SetDelay(time.Minute)
	n, api := newNode(t), newAPIServer(t)
	for name, priority := range map[string]int32{"low": 0, "high": 1000, "critical": 2_000_000_000} {
		n.runtime.SetProgram("c-"+name, fake.Program{StopDelay: time.Second, ExitCode: 143})
		api.create(name, priority)
	}
	n.start("--kubeconfig="+kubeconfig(t, api.server.URL), "--config="+n.config(shutdownConfig))
	for _, name := range []string{"low", "high", "critical"} {
		api.reaches(t, name, "Running")
	}
	proctest.Await(t, soon, "the inhibitor", func() bool { return l.Inhibitors() == 1 })

	l.Begin(t)
	proctest.Await(t, soon, "the machine may go down", func() bool { return l.Inhibitors() == 0 })
	if got := fmt.Sprint(api.failures()); got != "[low high critical]" {
		t.Errorf("when the machine goes down the API has the ends of %s, want low, high and critical in this order", got)
	}
	api.mu.Lock()
	status := api.pods["ns/low"].Status
	for name, p := range api.pods {
		if c := p.Status.ContainerStatuses; len(c) != 1 || c[0].State.Terminated == nil {
			t.Errorf("when the machine goes down the API does not have the end of %s: %+v", name, c)
		}
	}
	api.mu.Unlock()
	if status.Message != "Pod was terminated in response to imminent node shutdown." {
		t.Errorf("message is %q", status.Message)
	}
	api.create("late", 0)
	api.reaches(t, "late", "Failed NodeShutdown")

	l.Cancel(t)
	proctest.Await(t, soon, "a new inhibitor", func() bool { return l.Inhibitors() == 1 })
	api.create("later", 0)
	api.reaches(t, "later", "Running")
}

func TestAKilledPodsyncContinuesAShutdown(t *testing.T) {
	l := logindtest.Start(t)
	l.SetDelay(time.Minute)
	n, api := newNode(t), newAPIServer(t)
	n.runtime.SetProgram("c-low", fake.Program{ExitCode: 143})
	n.runtime.SetProgram("c-critical", fake.Program{ExitCode: 143})
	n.runtime.SetProgram("c-high", fake.Program{StopDelay: 5 * time.Second, ExitCode: 143})
	for name, priority := range map[string]int32{"low": 0, "high": 1000, "critical": 2_000_000_000} {
		api.create(name, priority)
	}
	args := []string{"--kubeconfig=" + kubeconfig(t, api.server.URL), "--config=" + n.config(shutdownConfig)}
	p := n.start(args...)
	for _, name := range []string{"low", "high", "critical"} {
		api.reaches(t, name, "Running")
	}
	l.Begin(t)
	api.reaches(t, "low", ended)
	proctest.Await(t, soon, "high is being stopped", func() bool { return n.runtime.InFlight("StopContainer") == 1 })
	p.Kill()
	started := len(n.runtime.Calls("StartContainer"))
	if got := fmt.Sprint(api.failures()); got != "[low]" {
		t.Errorf("the API has the ends of %s when podsync is killed, want that of low", got)
	}

	n.start(args...)
	api.create("late", 0)
	for name, want := range map[string]string{"high": ended, "critical": ended, "late": "Failed NodeShutdown"} {
		api.reaches(t, name, want)
	}
	failures := strings.Join(api.failures(), " ")
	if strings.Index(failures, "high") > strings.Index(failures, "critical") {
		t.Errorf("the ends are those of %s, want high before critical", failures)
	}
	if now := len(n.runtime.Calls("StartContainer")); now != started {
		t.Errorf("%d containers were started during the shutdown", now-started)
	}
}
