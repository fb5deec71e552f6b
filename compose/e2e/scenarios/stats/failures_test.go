//go:build long

package stats

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/figures"
	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// figurePages are all that stats serves.
var figurePages = []string{"/stats/summary", "/metrics/resource", "/metrics/cadvisor"}

// TestStatsDown keeps stats down. Its readers get that as the answer at once, no pod and no other service notices, and
// the figures come back with it.
func TestStatsDown(t *testing.T) {
	outage(t, func(s *scene.Scene, r *scene.MetricsReader) (end func()) {
		release := s.HoldDown(role.Stats)
		for _, page := range figurePages {
			var header http.Header
			scene.Await(t, scene.Patience, page+" without stats", func() error {
				var err error
				if header, _, err = r.Get(t.Context(), page); err == nil || !strings.Contains(err.Error(), "503") {
					return fmt.Errorf("it answers %w", err)
				}
				if !strings.Contains(err.Error(), "stats has no figures: ") || header.Get("Retry-After") == "" {
					t.Errorf("%s: %v, come again after %q", page, err, header.Get("Retry-After"))
				}
				return nil
			})
		}
		return release
	})
}

// outage begins an outage of stats among pods and ends it. What was there before notices nothing, a pod that comes
// meanwhile becomes Ready, and the figures come back.
func outage(t *testing.T, begin func(s *scene.Scene, r *scene.MetricsReader) (end func())) {
	t.Helper()
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	r := s.MetricsReader()
	hasFigures(s, r)
	restartedAlone := restartsAlone(s, role.Stats)

	end := begin(s, r)
	s.CreatePods(scene.PausePod("meanwhile"))
	s.WaitReady(scene.Patience, "meanwhile")
	end()

	hasFigures(s, r)
	s.WaitHealthy(t, scene.Patience)
	w.Untouched()
	w.NodeReady()
	restartedAlone()
}

// hasFigures waits until all pages have new figures of the scene's pods.
func hasFigures(s *scene.Scene, r *scene.MetricsReader) {
	s.T.Helper()
	for _, page := range figurePages {
		scene.Await(s.T, scene.Patience, page, func() error {
			header, body, err := r.Get(s.T.Context(), page)
			if err == nil && !strings.Contains(string(body), "steady-0") {
				err = fmt.Errorf("%s has no figures of the pods", page)
			}
			if age, ageErr := strconv.Atoi(header.Get("Age")); err == nil && (ageErr != nil || age > 60) {
				err = fmt.Errorf("%s is %q seconds old", page, header.Get("Age"))
			}
			return err
		})
	}
}

// restartsAlone returns what fails the test if another service than that one has ended meanwhile.
func restartsAlone(s *scene.Scene, one role.Role) (check func()) {
	s.T.Helper()
	before, err := s.ProcessStatuses(s.T.Context())
	if err != nil {
		s.T.Fatal(err)
	}
	return func() {
		s.T.Helper()
		after, err := s.ProcessStatuses(s.T.Context())
		if err != nil {
			s.T.Fatal(err)
		}
		if is, was := after[one], before[one]; is.PID == was.PID {
			s.T.Errorf("%s has not ended: pid %d", one, is.PID)
		}
		for name, was := range before {
			if is := after[name]; name != one && (is.PID != was.PID || is.Restarts != was.Restarts) {
				s.T.Errorf("%s had pid %d and %d restarts, and has %d and %d", name, was.PID, was.Restarts, is.PID, is.Restarts)
			}
		}
	}
}

// TestStatsLimit fills the cgroup that limits the memory of stats. The kernel kills stats and nothing else, its readers
// get that as the answer, and the figures come back when there is room again.
func TestStatsLimit(t *testing.T) {
	outage(t, func(s *scene.Scene, r *scene.MetricsReader) (end func()) {
		cgroup, err := machine.MemoryCgroup(s.MustPID(t, role.Stats))
		if err != nil {
			t.Fatal(err)
		}
		limit, err := os.ReadFile(filepath.Join(cgroup, "memory.limit_in_bytes"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(limit)); got != strconv.Itoa(256<<20) {
			t.Fatalf("%s: the limit is %s bytes", cgroup, got)
		}
		kills := oomKills(t, cgroup)

		// A file in memory counts for the cgroup of who wrote it, and stays when that process has ended.
		ballast := filepath.Join("/dev/shm", "microlet-ballast-"+s.Namespace)
		remove := func() {
			if err := os.Remove(ballast); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
		t.Cleanup(remove)
		fill := exec.CommandContext(t.Context(), "sh", "-c", `echo $$ >"$1/cgroup.procs" && exec head -c 254m /dev/zero >"$2"`,
			"sh", cgroup, ballast)
		out, err := fill.CombinedOutput() // the kernel may kill it too, when stats has ended
		t.Logf("filling the cgroup: %v %s", err, out)
		for _, page := range figurePages {
			scene.Await(t, scene.Patience, page+" without room", func() error {
				header, _, err := r.Get(t.Context(), page)
				if err == nil || !strings.Contains(err.Error(), "503") ||
					!strings.Contains(err.Error(), "stats has no figures: ") {
					return fmt.Errorf("it answers %w", err)
				}
				if header.Get("Retry-After") == "" {
					t.Errorf("%s: %v, without Retry-After", page, err)
				}
				return nil
			})
		}
		if got := oomKills(t, cgroup); got <= kills {
			t.Errorf("the kernel has killed %d processes of %s, before %d", got, cgroup, kills)
		}
		return remove
	})
}

// oomKills is how many processes of a cgroup the kernel has killed for its limit.
func oomKills(t *testing.T, cgroup string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cgroup, "memory.oom_control"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if count, is := strings.CutPrefix(line, "oom_kill "); is {
			n, err := strconv.Atoi(strings.TrimSpace(count))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s: no count of kills in %q", cgroup, text)
	return 0
}

// silence is how long the runtime answers nothing.
const silence = time.Minute

// TestStatsWithoutTheRuntime stops the runtime for a minute. The figures that are not the runtime's go on, each answer
// says why a part of it is old, and stats gathers no memory meanwhile.
func TestStatsWithoutTheRuntime(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	s.CreateSteadyPods()
	r := s.MetricsReader()
	hasFigures(s, r)
	pid := s.MustPID(t, role.Stats)
	before, err := machine.Anonymous(pid)
	if err != nil {
		t.Fatal(err)
	}
	runtime := s.ProgramPID("containerd")
	goOn := func() { _ = syscall.Kill(runtime, syscall.SIGCONT) }
	t.Cleanup(goOn)
	if err := syscall.Kill(runtime, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	warned, answers, longest := 0, 0, time.Duration(0)
	for end := time.Now().Add(silence); time.Now().Before(end); time.Sleep(time.Second) {
		for _, page := range figurePages {
			began := time.Now()
			header, body, err := r.Get(t.Context(), page)
			answers, longest = answers+1, max(longest, time.Since(began))
			if err != nil || !strings.Contains(string(body), "steady-0") {
				t.Errorf("%s %s after the runtime fell silent: no figures of the pods: %v", page, silence-time.Until(end), err)
			}
			if header.Get("Warning") != "" {
				warned++
			}
		}
	}
	if warned == 0 {
		t.Errorf("none of %d answers says that a part of it is old", answers)
	}
	t.Logf("%d answers, %d with a warning; the longest took %s", answers, warned, scene.Milliseconds(longest))
	goOn()
	scene.Await(t, scene.Patience, "figures of the runtime", func() error {
		header, body, err := r.Get(t.Context(), "/stats/summary")
		if err == nil && (header.Get("Warning") != "" || !strings.Contains(string(body), `"rootfs"`)) {
			err = fmt.Errorf("warning %q", header.Get("Warning"))
		}
		return err
	})
	s.WaitHealthy(t, scene.Patience)
	if s.PID(role.Stats) != pid {
		t.Fatal("stats has ended")
	}
	after, err := machine.Anonymous(pid)
	if err != nil {
		t.Fatal(err)
	}
	if after > before+churnSlack {
		t.Errorf("its memory grew from %d to %d bytes", before, after)
	}
}

const (
	churnWaves      = 10
	churnPods       = 25
	churnContainers = 2
	// churnWarm is after how many waves the memory of stats is what it stays.
	churnWarm = 3
	// churnSlack is what its anonymous memory may grow by after that, on account of the garbage collector alone.
	churnSlack = 8 << 20
)

// TestStatsChurn creates and removes 500 containers. There are figures of all while they live and of none when they are
// gone, and the memory of stats stays as it is.
func TestStatsChurn(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	r := s.MetricsReader()
	pid := s.MustPID(t, role.Stats)
	// count is how many containers of the scene are in the summary, and on the page of cAdvisor.
	count := func() (int, int, error) {
		_, text, err := r.Get(t.Context(), "/stats/summary")
		if err != nil {
			return 0, 0, err
		}
		summary, err := figures.Summary(text)
		if err != nil {
			return 0, 0, err
		}
		if _, text, err = r.Get(t.Context(), "/metrics/cadvisor"); err != nil {
			return 0, 0, err
		}
		page, err := figures.Metrics(text)
		if err != nil {
			return 0, 0, err
		}
		inSummary := summary.Take(func(path string) bool {
			return strings.HasPrefix(path, "pods["+s.Namespace+"/") && strings.Contains(path, "].containers[") &&
				strings.HasSuffix(path, "].memory.workingSetBytes")
		})
		onPage := page.Take(func(path string) bool {
			return strings.HasPrefix(path, "container_memory_working_set_bytes{") &&
				strings.Contains(path, `namespace="`+s.Namespace+`"`) && strings.Contains(path, `container="c`)
		})
		return len(inSummary), len(onPage), nil
	}
	has := func(want int) {
		t.Helper()
		scene.Await(t, scene.Patience, fmt.Sprintf("figures of %d containers", want), func() error {
			inSummary, onPage, err := count()
			if err == nil && (inSummary != want || onPage != want) {
				err = fmt.Errorf("%d are in the summary, %d on the page", inSummary, onPage)
			}
			if err != nil {
				time.Sleep(time.Second)
			}
			return err
		})
	}
	var warm int64
	for wave := range churnWaves {
		var pods []*corev1.Pod
		var names []string
		for i := range churnPods {
			p := scene.OnNode(scene.PausePod(fmt.Sprintf("churn-%d-%d", wave, i)), s.NodeName())
			c := p.Spec.Containers[0]
			p.Spec.Containers = nil
			for n := range churnContainers {
				c.Name = fmt.Sprintf("c%d", n)
				p.Spec.Containers = append(p.Spec.Containers, c)
			}
			pods, names = append(pods, p), append(names, p.Name)
		}
		s.CreatePods(pods...)
		s.WaitReady(2*scene.Patience, names...)
		has(churnPods * churnContainers)
		s.DeletePods(names...)
		s.Wait(2*scene.Patience, "the end of a wave", s.AreGone(names...))
		has(0)
		memory, err := machine.Anonymous(pid)
		if err != nil {
			t.Fatalf("stats has ended: %v", err)
		}
		t.Logf("after %d containers stats has %.1f MiB of anonymous memory", (wave+1)*churnPods*churnContainers,
			float64(memory)/(1<<20))
		if wave == churnWarm-1 {
			warm = memory
		}
		if wave >= churnWarm && memory > warm+churnSlack {
			t.Errorf("its memory grows: %d bytes after wave %d, %d after wave %d", warm, churnWarm, memory, wave+1)
		}
	}
}
