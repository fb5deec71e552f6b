//go:build compose

package compose

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// services are the containers of the node agent.
var services = slices.DeleteFunc(role.All(), func(r role.Role) bool { return r == role.Up })

// manifest has an exec probe that succeeds as long as a file is there, beside an HTTP probe, a Secret and a volume in
// memory, which podsync mounts in its container and the runtime uses in another.
var manifest = `
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {value: seen}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: ` + rig.BusyboxImage + `
        command: [sh, -c, "touch /tmp/ready /tmp/alive; exec httpd -f -p 8080 -h /tmp"]
        readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1}
        livenessProbe: {httpGet: {path: /alive, port: 8080}, periodSeconds: 1, initialDelaySeconds: 1}
        volumeMounts: [{name: token, mountPath: /token}, {name: memory, mountPath: /memory}]
      volumes: [{name: token, secret: {secretName: token}}, {name: memory, emptyDir: {medium: Memory}}]
`

// TestCompose starts everything, kills each service in turn under a Deployment that is probed, scales the prober, and
// takes everything down. It then does the same with the kubelet, but for the kills.
func TestCompose(t *testing.T) {
	p := newProject(t)
	p.run(t, "up", "--wait")
	t.Run("a Deployment", p.testDeployment)
	p.deploy(t)
	t.Run("volumes", p.testVolumes)
	t.Run("privileges", p.testPrivileges)
	t.Run("kills", p.testKills)
	t.Run("commands of Docker Compose", p.testCommands)
	t.Run("a hung service", p.testHung)
	t.Run("a bus that comes last", p.testLateBus)
	t.Run("scale", p.testScale)
	t.Run("observability", p.testObservability)
	p.down(t, "microlet", "observability")

	p.run(t, "--profile", "kubelet", "up", "--wait")
	t.Run("a Deployment of the kubelet", p.testDeployment)
	p.deploy(t)
	t.Run("volumes of the kubelet", p.testVolumes)
	t.Run("readiness with the kubelet", p.testReadiness)
	p.down(t, "kubelet")
}

// deploy waits until the Deployment is available.
func (p *project) deploy(t *testing.T) {
	t.Helper()
	if _, err := p.kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.kubectl(t.Context(), "", "rollout", "status", "deployment/web", "--timeout=90s"); err != nil {
		t.Fatal(err)
	}
}

// down takes everything down, and looks for what it leaves.
func (p *project) down(t *testing.T, profiles ...string) {
	t.Helper()
	p.report(t)
	var args []string
	for _, profile := range profiles {
		args = append(args, "--profile", profile)
	}
	p.run(t, append(args, "down", "--volumes")...)
	p.testNothingIsLeft(t)
}

// testDeployment looks at the Deployment that "up --wait" ends with.
func (p *project) testDeployment(t *testing.T) {
	out, err := p.kubectl(t.Context(), "", "get", "deployment", "hello", "--namespace=demo",
		"-o=jsonpath={.status.availableReplicas}")
	if err != nil || out != "2" {
		t.Errorf("%q pods of the Deployment are available: %v", out, err)
	}
}

// testCommands has Docker Compose kill, stop, start and restart services, and show their logs, under pods that should
// notice nothing.
func (p *project) testCommands(t *testing.T) {
	before := p.ready(t)
	for _, step := range []struct {
		command string
		service role.Role
	}{{"kill", role.Podsync}, {"stop", role.Stats}} {
		p.run(t, step.command, string(step.service))
		if pids, err := p.pids(t.Context(), string(step.service)); err != nil || len(pids) != 0 {
			t.Errorf("after %s, %s has processes %v: %v", step.command, step.service, pids, err)
		}
		p.run(t, "start", string(step.service))
		p.awaitHealth(t, step.service, "healthy")
	}
	p.run(t, "restart", "--no-deps", string(role.PLEG))
	p.awaitHealth(t, role.PLEG, "healthy")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := p.command(ctx, "logs", "--no-color", "--no-log-prefix", "--follow", string(role.Podsync))
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(patience, cancel)
	defer stop.Stop()
	found := false
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		found = strings.Contains(lines.Text(), "service is ready")
	}
	cancel()
	if err := follow.Wait(); !found {
		t.Errorf("the logs of podsync do not say that it is ready: %v", err)
	}
	p.unchanged(t, before)
	p.testReadiness(t)
}

// testObservability asks Prometheus what it scrapes, and looks for each panel on the page of the dashboard.
func (p *project) testObservability(t *testing.T) {
	p.run(t, "--profile", "microlet", "--profile", "observability", "up", "--wait", "--no-recreate")
	for query, want := range map[string]int{
		"up==1": 4, // the paths of the node's metrics
		// One of each service: the supervisor is not there.
		"count by (service) (microlet_build_info)": len(services),
	} {
		await(t, query, func(ctx context.Context) error {
			out, err := p.try(ctx, "", "--profile", "observability", "exec", "-T", "prometheus", "wget", "-q", "-O", "-",
				"http://127.0.0.1:9090/api/v1/query?query="+url.QueryEscape(query))
			if err != nil {
				return err
			}
			var answer struct{ Data struct{ Result []any } }
			if err := json.Unmarshal([]byte(out), &answer); err != nil {
				return err
			}
			if len(answer.Data.Result) != want {
				return fmt.Errorf("%d series, want %d: %s", len(answer.Data.Result), want, out)
			}
			return nil
		})
	}
	for _, panel := range panels(t) {
		await(t, "panel "+panel, func(ctx context.Context) error {
			page, err := p.try(ctx, "", "--profile", "observability", "exec", "-T", "dashboard", "wget", "-q", "-O", "-",
				"http://127.0.0.1:3000/")
			if err == nil && !strings.Contains(html.UnescapeString(page), ">"+panel+"<") {
				err = errors.New("it is not on the page")
			}
			return err
		})
	}
}

// panels are the titles on the dashboard.
func panels(t *testing.T) (titles []string) {
	t.Helper()
	text, err := os.ReadFile("../../../../deploy/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []struct{ Title string } }
	if err := json.Unmarshal(text, &d); err != nil || len(d.Panels) == 0 {
		t.Fatalf("the dashboard has %d panels: %v", len(d.Panels), err)
	}
	for _, panel := range d.Panels {
		titles = append(titles, panel.Title)
	}
	return titles
}

// report logs what the services said, where something failed.
func (p *project) report(t *testing.T) {
	if !t.Failed() {
		return
	}
	out, err := p.try(t.Context(), "", "logs", "--no-color", "--tail=15")
	t.Logf("logs: %s %v", out, err)
}

// testVolumes looks at what podsync mounted from within a container.
func (p *project) testVolumes(t *testing.T) {
	out, err := p.kubectl(t.Context(), "", "exec", "deployment/web", "--", "sh", "-c",
		"cat /token/value; stat -f -c ' %T' /memory")
	if err != nil {
		t.Fatal(err)
	}
	if out != "seen tmpfs" {
		t.Errorf("the volumes have %q, want the Secret's value and a tmpfs", out)
	}
}

// testPrivileges holds the processes to the table of roles.
func (p *project) testPrivileges(t *testing.T) {
	for _, r := range services {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		pids, err := p.pids(t.Context(), string(r))
		if err != nil || len(pids) != 1 {
			t.Fatalf("%s has processes %v: %v", r, pids, err)
		}
		text, err := p.onNode(t.Context(), "cat", "/proc/"+pids[0]+"/status")
		if err != nil {
			t.Fatal(err)
		}
		got, err := machine.ParseCredentials([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got.UIDs[1] != id.UID || !got.NoNewPrivileges {
			t.Errorf("%s has uid %d and no new privileges: %t, want uid %d and true", r, got.UIDs[1], got.NoNewPrivileges,
				id.UID)
		}
		if id.UID == 0 {
			continue // compose.yaml names its capabilities
		}
		want, err := machine.CapabilitySet(id.Capabilities)
		if err != nil {
			t.Fatal(err)
		}
		if got.Effective != want || got.Bounding != want {
			t.Errorf("%s has capabilities %x, at most %x, want %x", r, got.Effective, got.Bounding, want)
		}
	}
}

// testKills kills each service, and looks at pods that should notice nothing.
func (p *project) testKills(t *testing.T) {
	before := p.ready(t)
	for _, r := range services {
		container := "microlet-" + string(r) + "-1"
		old, err := p.Inspect(t.Context(), container)
		if err != nil {
			t.Fatal(err)
		}
		pids, err := p.pids(t.Context(), string(r))
		if err != nil || len(pids) != 1 {
			t.Fatalf("%s has processes %v: %v", r, pids, err)
		}
		if _, err := p.onNode(t.Context(), "kill", "-KILL", pids[0]); err != nil {
			t.Fatal(err)
		}
		await(t, string(r)+" to be back", func(ctx context.Context) error {
			now, err := p.Inspect(ctx, container)
			if err == nil && (now.RestartCount == old.RestartCount || now.State.Health.Status != "healthy") {
				err = fmt.Errorf("it was restarted %d times, before %d, and is %q", now.RestartCount, old.RestartCount,
					now.State.Health.Status)
			}
			return err
		})
	}
	p.unchanged(t, before)
	p.testReadiness(t)
}

// testHung has Docker say that a service hangs.
func (p *project) testHung(t *testing.T) {
	pids, err := p.pids(t.Context(), string(role.PLEG))
	if err != nil || len(pids) != 1 {
		t.Fatalf("pleg has processes %v: %v", pids, err)
	}
	for _, step := range []struct{ signal, health string }{{"STOP", "unhealthy"}, {"CONT", "healthy"}} {
		if _, err := p.onNode(t.Context(), "kill", "-"+step.signal, pids[0]); err != nil {
			t.Fatal(err)
		}
		p.awaitHealth(t, role.PLEG, step.health)
	}
}

// awaitHealth waits until Docker says this of a service.
func (p *project) awaitHealth(t *testing.T, r role.Role, want string) {
	t.Helper()
	await(t, string(r)+" to be "+want, func(ctx context.Context) error {
		c, err := p.Inspect(ctx, "microlet-"+string(r)+"-1")
		if err == nil && c.State.Health.Status != want {
			err = errors.New(c.State.Health.Status)
		}
		return err
	})
}

// testLateBus has a service start while there is no bus.
func (p *project) testLateBus(t *testing.T) {
	before := p.ready(t)
	p.run(t, "stop", "bus")
	p.run(t, "restart", "--no-deps", "pleg", "prober")
	p.run(t, "start", "bus")
	for _, r := range []role.Role{role.Bus, role.PLEG, role.Prober} {
		p.awaitHealth(t, r, "healthy")
	}
	p.unchanged(t, before)
	p.testReadiness(t)
}

// testScale has the pods shared by three probers, and then by one again.
func (p *project) testScale(t *testing.T) {
	before := p.ready(t)
	for _, n := range []int{3, 1} {
		p.run(t, "up", "--detach", "--wait", "--no-recreate", "--scale", fmt.Sprintf("prober=%d", n))
		pids, err := p.pids(t.Context(), string(role.Prober))
		if err != nil || len(pids) != n {
			t.Errorf("with scale %d there are probers %v: %v", n, pids, err)
		}
		p.unchanged(t, before)
		p.testReadiness(t)
		before = p.ready(t)
	}
}

// testReadiness has every pod unready and ready again: probes run, and their results reach the API server.
func (p *project) testReadiness(t *testing.T) {
	t.Helper()
	p.change(t, "rm -f /tmp/ready", corev1.ConditionFalse)
	p.change(t, "touch /tmp/ready", corev1.ConditionTrue)
}

// change runs a command in every pod and waits until their readiness is this.
func (p *project) change(t *testing.T, command string, want corev1.ConditionStatus) {
	t.Helper()
	pods, err := p.pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		await(t, command+" in pod "+pod.Name, func(ctx context.Context) error {
			_, err := p.kubectl(ctx, "", "exec", pod.Name, "--", "sh", "-c", command)
			return err
		})
	}
	p.await(t, want)
}

// ready waits until both pods are ready, and returns them.
func (p *project) ready(t *testing.T) []corev1.Pod {
	t.Helper()
	return p.await(t, corev1.ConditionTrue)
}

// await waits until the readiness of both pods is this, and returns them.
func (p *project) await(t *testing.T, want corev1.ConditionStatus) []corev1.Pod {
	t.Helper()
	var found []corev1.Pod
	await(t, "two pods whose readiness is "+string(want), func(ctx context.Context) (err error) {
		if found, err = p.pods(ctx); err != nil {
			return err
		}
		if len(found) != 2 {
			return fmt.Errorf("there are %d pods", len(found))
		}
		for _, pod := range found {
			if c := readyCondition(pod); c == nil || c.Status != want {
				return fmt.Errorf("the readiness of pod %s is %v", pod.Name, c)
			}
		}
		return nil
	})
	return found
}

func readyCondition(pod corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
}

// unchanged compares the pods with what they were: the same ones, no container restarted, readiness never lost.
func (p *project) unchanged(t *testing.T, before []corev1.Pod) {
	t.Helper()
	after, err := p.pods(t.Context())
	if err != nil || len(after) != len(before) {
		t.Fatalf("there are %d pods, want %d: %v", len(after), len(before), err)
	}
	for i, pod := range after {
		old := before[i]
		if pod.UID != old.UID {
			t.Errorf("pod %s was replaced by %s", old.Name, pod.Name)
			continue
		}
		was, is := readyCondition(old), readyCondition(pod)
		if was == nil || is == nil || is.Status != was.Status || !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
			t.Errorf("the readiness of pod %s was %v and is %v", pod.Name, was, is)
		}
		for j, c := range pod.Status.ContainerStatuses {
			if c.RestartCount != old.Status.ContainerStatuses[j].RestartCount {
				t.Errorf("container %s of pod %s was restarted", c.Name, pod.Name)
			}
		}
	}
}

// testNothingIsLeft looks for what down should have taken away.
func (p *project) testNothingIsLeft(t *testing.T) {
	left, err := p.Left(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{p.rootDir() + "/", filepath.Join(p.dir, "data/volumes") + "/"} {
		mounts, err := p.Mounts(dir)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, mounts...)
	}
	for _, cgroup := range []string{servicesCgroup, podsCgroup} {
		for _, pattern := range []string{"/sys/fs/cgroup" + cgroup, "/sys/fs/cgroup/*" + cgroup} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, found...)
		}
	}
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
