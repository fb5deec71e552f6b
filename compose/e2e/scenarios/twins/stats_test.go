//go:build long

package twins

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/compose/e2e/internal/figures"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

const (
	// housekeeping is more than either agent takes from a change of a figure to showing it.
	housekeeping = 20 * time.Second
	// rateTime is over which the CPU time of a steady load is counted.
	rateTime = 40 * time.Second
	// burned is the limit of the pod that uses all CPU time that it gets, in cores.
	burned = 0.1
)

// busyRules are for the pod that never rests: its CPU time is judged by how fast it grows.
var busyRules = []figures.Rule{
	figures.Moving(`/busy\]\..*usageCoreNanoSeconds$`),
	figures.Moving(`^(container|pod)_cpu_\w+\{.*pod="busy"`),
	figures.Moving(`/host\]\.network\.`), // the host's
	figures.Moving(`^container_network_.*pod="host"`),
}

// answers are what an agent says of the same pods: the summary, with CPU and memory alone too, and two pages.
type answers struct {
	summary, brief, resource, cadvisor figures.Facts
}

// TestStatsTwins has the kubelet and then microlet measure the same containers, which neither of them restarts. All
// but one rest, so that their figures stay as they are, and one uses CPU time at its limit.
func TestStatsTwins(t *testing.T) {
	scene.Shared.LinkForCadvisor(t)
	compareStats(t, nil)
}

// TestStatsTwinsFromCRI is the same with the figures of pods and containers that the runtime measures.
func TestStatsTwinsFromCRI(t *testing.T) {
	t.Cleanup(func() { scene.Shared.SwitchTo(t, scene.FirstAgent) })
	compareStats(t, figures.MeantFromCRI,
		"--feature-gates=PodAndContainerStatsFromCRI=true")
}

// compareStats compares the figures of both agents that run with these arguments. meant are differences besides those
// of any arguments.
func compareStats(t *testing.T, meant []figures.Explanation, args ...string) {
	t.Helper()
	meantInSummary := slices.Concat(figures.MeantInSummary, meant)
	meantInMetrics := slices.Concat(figures.MeantInMetrics, meant)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, args...)
	s := scene.New(t)
	measured(s)

	scene.Shared.SwitchTo(t, rig.AgentKubelet, args...) // it restarts, with the link
	theirs, theirRates := measure(s)
	scene.Shared.SwitchTo(t, rig.AgentMicrolet, args...)
	ours, ourRates := measure(s)

	for _, e := range slices.Concat(meantInSummary, meantInMetrics) {
		t.Logf("meant: %s", e)
	}
	for _, part := range []struct {
		name         string
		theirs, ours figures.Facts
		rules        []figures.Rule
		meant        []figures.Explanation
	}{
		{"/stats/summary", theirs.summary, ours.summary, figures.SummaryRules, meantInSummary},
		{"/stats/summary?only_cpu_and_memory=true", theirs.brief, ours.brief, figures.SummaryRules, meantInSummary},
		{"/metrics/resource", theirs.resource, ours.resource, figures.MetricRules, meantInMetrics},
		{"/metrics/cadvisor", figures.WithoutSandboxImages(theirs.cadvisor), ours.cadvisor, figures.MetricRules,
			meantInMetrics},
	} {
		all := figures.Compare(part.theirs, part.ours, append(slices.Clone(busyRules), part.rules...))
		rest := figures.Unexplained(all, part.meant)
		t.Logf("%s: %d facts of the kubelet, %d of microlet; %d differ, of which %d are meant", part.name,
			len(part.theirs), len(part.ours), len(all), len(all)-len(rest))
		for _, d := range rest {
			t.Errorf("%s: %s", part.name, d)
		}
	}
	for name, theirs := range theirRates {
		t.Logf("%s: %.4f cores by the kubelet, %.4f by microlet", name, theirs, ourRates[name])
		if ours := ourRates[name]; max(theirs, ours)-min(theirs, ours) > 0.05*max(theirs, ours) {
			t.Errorf("%s: the kubelet says %.4f cores, microlet %.4f", name, theirs, ours)
		}
	}
}

// measured creates the pods that are measured, and waits until all but one rest.
func measured(s *scene.Scene) {
	s.T.Helper()
	const rests = "echo rests; " + scene.Forever
	// Something of all that is measured: CPU time, memory, files on the root file system, in volumes and in logs.
	uses := scene.ShellContainer("main",
		`head -c 20m /dev/zero >/tmp/file; head -c 10m /dev/zero >/disk/file; head -c 30m /dev/zero >/memory/file
for i in $(seq 2000); do echo "line $i"; done
i=0; while test $i -lt 2000000; do i=$((i+1)); done; sync; `+rests)
	uses.VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}, {Name: "memory", MountPath: "/memory"}}
	uses.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}
	uses.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	rich := scene.PausePod("rich")
	rich.Spec.InitContainers = []corev1.Container{scene.ShellContainer("first", "true")}
	rich.Spec.Containers = append(rich.Spec.Containers, uses)
	rich.Spec.Containers[0].Name = "pause"
	rich.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	}
	server := scene.ScriptPod("server",
		"mkdir /tmp/www; head -c 5m /dev/zero >/tmp/www/file; httpd -p 8080 -h /tmp/www; "+rests)
	busy := scene.ScriptPod("busy", "echo rests; while :; do :; done")
	busy.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(burned*1000, resource.DecimalSI),
	}
	host := scene.ScriptPod("host", rests)
	host.Spec.HostNetwork = true
	ended := scene.ScriptPod("ended", "true")
	ended.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.CreatePods(rich, server, busy, host, ended)
	s.WaitReady(scene.Patience, "rich", "server", "busy", "host")

	address := s.Record.View().Pod(s.Namespace, "server").Status.PodIP
	s.CreatePods(scene.ScriptPod("client",
		fmt.Sprintf("for i in 1 2 3 4; do wget -q -O /dev/null http://%s:8080/file || exit 1; done; ", address)+rests))
	s.WaitReady(scene.Patience, "client")
	for pod, container := range map[string]string{"rich": "main", "server": "main", "client": "main"} {
		p := s.Record.View().Pod(s.Namespace, pod)
		scene.Await(s.T, scene.Patience, "the rest of "+pod, func() error {
			text, err := s.ContainerLog(p, container, 0)
			if err == nil && !strings.Contains(text, "rests") {
				err = errors.New("it works")
			}
			return err
		})
	}
}

// measure returns what the present agent says when it has figures of all, and how fast the CPU time of the busy pod
// grows.
func measure(s *scene.Scene) (answers, map[string]float64) {
	s.T.Helper()
	begin := time.Now()
	var first answers
	s.AwaitSlowly(2*scene.Patience, "figures of all pods", func() error {
		before := len(first.summary) + len(first.cadvisor) + len(first.resource)
		first = readFigures(s)
		paths := strings.Join(slices.Collect(maps.Keys(first.summary)), "\n")
		for _, want := range []string{"rich].containers[main].cpu.usageNanoCores", "client].network.rxBytes",
			"rich].volume[disk].usedBytes"} {
			if !strings.Contains(paths, want) {
				return fmt.Errorf("%s has no %s", s.Agent(), want)
			}
		}
		if after := len(first.summary) + len(first.cadvisor) + len(first.resource); after != before {
			time.Sleep(housekeeping)
			return fmt.Errorf("%s had %d figures, and %d now", s.Agent(), before, after)
		}
		return nil
	})
	s.T.Logf("%s has all figures after %s", s.Agent(), time.Since(begin).Round(time.Second))
	time.Sleep(rateTime)
	second := readFigures(s)
	rates := map[string]float64{}
	summary := "pods[" + s.Namespace + "/busy].containers[main].cpu.usageCoreNanoSeconds"
	rate, err := figures.Rate(first.summary, second.summary, summary)
	if err != nil {
		s.T.Error(err)
	}
	rates["/stats/summary"] = rate / 1e9
	for page, both := range map[string][2]figures.Facts{
		"/metrics/resource": {first.resource, second.resource}, "/metrics/cadvisor": {first.cadvisor, second.cadvisor},
	} {
		for path := range both[0] {
			if strings.HasPrefix(path, "container_cpu_usage_seconds_total{") && strings.Contains(path, `pod="busy"`) &&
				strings.Contains(path, `container="main"`) {
				if rates[page], err = figures.Rate(both[0], both[1], path); err != nil {
					s.T.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	// little on a busy machine
	if nano := second.summary["pods["+s.Namespace+
		"/busy].containers[main].cpu.usageNanoCores"].Number; nano < 0.3e9*burned || nano > 1.1e9*burned {
		s.T.Errorf("%s says that %.3f cores are used, where %.3f may", s.Agent(), nano/1e9, burned)
	}
	return second, rates
}

// readFigures asks the present agent for all of it, and leaves out what belongs to pods of others.
func readFigures(s *scene.Scene) answers {
	s.T.Helper()
	get := func(path, query string) []byte {
		s.T.Helper()
		r := s.API.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + s.NodeName() + "/proxy" + path)
		if query != "" {
			r = r.Param(query, "true")
		}
		text, err := r.DoRaw(s.T.Context())
		if err != nil {
			s.T.Logf("%s: %v", path, err)
		}
		return text
	}
	read := func(name string, text []byte, facts func([]byte) (figures.Facts, error),
		take func(string) bool) figures.Facts {
		s.T.Helper()
		if dir := os.Getenv(figuresVariable); dir != "" {
			name = strings.ReplaceAll(strings.Trim(name, "/"), "/", "-")
			if err := os.WriteFile(filepath.Join(dir, string(s.Agent())+"-"+name), text, 0o600); err != nil {
				s.T.Error(err)
			}
		}
		f, err := facts(text)
		if err != nil {
			return nil
		}
		return f.Take(take)
	}
	ours := "pods[" + s.Namespace + "/"
	ofSummary := func(path string) bool {
		// Interfaces of the host come and go with other rigs.
		if strings.HasPrefix(path, "node.network.") || strings.HasPrefix(path, ours+"host].network.") {
			return !strings.Contains(path, ".interfaces[")
		}
		return !strings.HasPrefix(path, "pods[") || strings.HasPrefix(path, ours)
	}
	ofMetrics := func(path string) bool {
		// cAdvisor shows what was mounted when it began.
		if strings.HasPrefix(path, "container_fs_") && strings.Contains(path, `id="/",`) {
			return strings.Contains(path, `device="/dev/`)
		}
		// So do interfaces of the host.
		if strings.HasPrefix(path, "container_network_") &&
			(strings.Contains(path, `id="/",`) || strings.Contains(path, `pod="host"`)) {
			return strings.Contains(path, `interface="eth0"`)
		}
		_, rest, foreign := strings.Cut(path, `namespace="`)
		return !foreign || strings.HasPrefix(rest, s.Namespace+`"`) || strings.HasPrefix(rest, `"`)
	}
	return answers{
		summary:  read("/stats/summary", get("/stats/summary", ""), figures.Summary, ofSummary),
		brief:    read("/stats/brief", get("/stats/summary", "only_cpu_and_memory"), figures.Summary, ofSummary),
		resource: read("/metrics/resource", get("/metrics/resource", ""), figures.Metrics, ofMetrics),
		cadvisor: read("/metrics/cadvisor", get("/metrics/cadvisor", ""), figures.Metrics, ofMetrics),
	}
}

// figuresVariable names a folder to which TestStatsTwins writes what the agents have answered.
const figuresVariable = "MICROLET_FIGURES"
