package pods

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// redisServer answers PING as Redis does, over RESP: with PONG, or with an error while it loads its data.
// Its port is open all the time.
const redisServer = `cat > /tmp/redis <<'END'
#!/bin/sh
cr=$(printf '\r')
while read -r word; do
	test "${word%$cr}" = PING || continue
	if test -e /tmp/loading; then
		printf -- '-LOADING Redis is loading the dataset in memory\r\n'
	else
		printf '+PONG\r\n'
	fi
done
END
chmod +x /tmp/redis; nc -ll -p 6379 -e /tmp/redis & `

// redisPod names a plugin for its readiness.
func redisPod(name, plugin string) *corev1.Pod {
	p := scene.ScriptPod(name, redisServer+scene.Forever)
	p.Annotations = map[string]string{"microlet.dev/probe-plugin.main.readiness": plugin}
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 2,
		ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(6379)}},
	}
	return p
}

// TestProbePlugin installs the example plugin. A pod is Ready as long as the plugin says so. A pod without its plugin
// is reported.
func TestProbePlugin(t *testing.T) {
	dir := pluginFolder(t)
	scene.Shared.UseMicrolet(t, "--probe-plugin-dir="+dir)
	s := scene.New(t)
	s.CreatePods(redisPod("redis", "redis-ping"), redisPod("lost", "no-such"))
	s.WaitReady(scene.Patience, "redis")
	if scene.Placement == "" { // in the single placement everything is root's
		runsAsTheProber(s, filepath.Join(dir, "redis-ping"))
	}

	s.KubectlPrints("", "exec", "redis", "--", "touch", "/tmp/loading")
	s.Wait(scene.Patience, "the pod to leave Ready", func(v record.View) error {
		if record.Ready(v.Pod(s.Namespace, "redis")) {
			return errors.New("it is Ready")
		}
		return nil
	})
	unhealthy(s, "redis", `answers "-LOADING Redis is loading the dataset in memory"`)
	s.KubectlPrints("", "exec", "redis", "--", "rm", "/tmp/loading")
	s.WaitReady(scene.Patience, "redis")
	unhealthy(s, "lost",
		`Readiness probe errored and resulted in unknown state: probe plugin "no-such" is not installed on this node`)
	s.SyncRecord()
	for _, name := range []string{"redis", "lost"} {
		for _, p := range s.Record.History(s.Record.View().Pod(s.Namespace, name).UID) {
			for _, c := range p.Status.ContainerStatuses {
				if c.RestartCount > 0 || name == "lost" && c.Ready {
					t.Errorf("%s: ready %v, restarts %d", name, c.Ready, c.RestartCount)
				}
			}
		}
	}
}

// pluginFolder builds the example into a folder that the prober may read.
func pluginFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "microlet-plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "redis-ping")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, "./services/prober/examples/redis-ping")
	if build.Dir, err = scene.Checkout(); err != nil {
		t.Fatal(err)
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example plugin: %v\n%s", err, out)
	}
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// unhealthy waits for an Unhealthy event of a pod that says so much.
func unhealthy(s *scene.Scene, pod, message string) {
	s.T.Helper()
	s.Wait(scene.Patience, "the event", func(v record.View) error {
		var messages []string
		for _, e := range v.Events(s.Namespace, pod) {
			if e.Reason == "Unhealthy" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, message) {
				return nil
			}
			messages = append(messages, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("%s has %q", pod, strings.Join(messages, "\n"))
	})
}

// runsAsTheProber judges that the plugin has the prober's identity, and nothing more.
func runsAsTheProber(s *scene.Scene, plugin string) {
	s.T.Helper()
	prober := s.MustPID(s.T, role.Prober)
	identity, err := role.Get(role.Prober)
	if err != nil {
		s.T.Fatal(err)
	}
	children, err := machine.Children(prober)
	if err != nil {
		s.T.Fatal(err)
	}
	for _, c := range children {
		if a := machine.Arguments(c); len(a) == 0 || a[0] != plugin {
			continue
		}
		got, err := machine.ReadCredentials(c)
		if err != nil {
			s.T.Fatal(err)
		}
		for _, uid := range got.UIDs {
			if uid != identity.UID {
				s.T.Errorf("the plugin runs as %v, want %d", got.UIDs, identity.UID)
			}
		}
		if got.Permitted|got.Effective|got.Ambient != 0 || !got.NoNewPrivileges {
			s.T.Errorf("the plugin has %+v, want no capability and no way to more", got)
		}
		return
	}
	s.T.Errorf("%s is no child of the prober: %v", plugin, children)
}
