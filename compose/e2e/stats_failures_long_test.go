//go:build long && !bench

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/figures"
	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/proto/role"
)

// figurePages are all that stats serves.
var figurePages = []string{"/stats/summary", "/metrics/resource", "/metrics/cadvisor"}

// TestStatsDown keeps stats down. Its readers get that as the answer at once, no pod and no other service notices, and the
// figures come back with it.
func TestStatsDown(t *testing.T) {
	shared.use(t)
	s := newScene(t)
	w := s.steady()
	r := s.reader()
	figuresAreBack := func() {
		t.Helper()
		for _, page := range figurePages {
			await(t, patience, page, func() error {
				header, body, err := r.get(t.Context(), page)
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
	figuresAreBack()
	before, err := s.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	release := s.holdDown(role.Stats)
	for _, page := range figurePages {
		var header http.Header
		await(t, patience, page+" without stats", func() error {
			var err error
			if header, _, err = r.get(t.Context(), page); err == nil || !strings.Contains(err.Error(), "503") {
				return fmt.Errorf("it answers %w", err)
			}
			if !strings.Contains(err.Error(), "stats has no figures: ") || header.Get("Retry-After") == "" {
				t.Errorf("%s: %v, come again after %q", page, err, header.Get("Retry-After"))
			}
			return nil
		})
	}
	s.create(plain("meanwhile"))
	s.ready(patience, "meanwhile")
	release()

	figuresAreBack()
	s.waitHealthy(t, patience)
	w.untouched()
	w.nodeReady()
	after, err := s.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, was := range before {
		if is := after[name]; name != role.Stats && (is.PID != was.PID || is.Restarts != was.Restarts) {
			t.Errorf("%s had pid %d and %d restarts, and has %d and %d", name, was.PID, was.Restarts, is.PID, is.Restarts)
		}
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
	shared.use(t)
	s := newScene(t)
	r := s.reader()
	pid := s.mustPID(t, role.Stats)
	// count is how many containers of the scene are in the summary, and on the page of cAdvisor.
	count := func() (int, int, error) {
		_, text, err := r.get(t.Context(), "/stats/summary")
		if err != nil {
			return 0, 0, err
		}
		summary, err := figures.Summary(text)
		if err != nil {
			return 0, 0, err
		}
		if _, text, err = r.get(t.Context(), "/metrics/cadvisor"); err != nil {
			return 0, 0, err
		}
		page, err := figures.Metrics(text)
		if err != nil {
			return 0, 0, err
		}
		inSummary := summary.Take(func(path string) bool {
			return strings.HasPrefix(path, "pods["+s.ns+"/") && strings.Contains(path, "].containers[") &&
				strings.HasSuffix(path, "].memory.workingSetBytes")
		})
		onPage := page.Take(func(path string) bool {
			return strings.HasPrefix(path, "container_memory_working_set_bytes{") &&
				strings.Contains(path, `namespace="`+s.ns+`"`) && strings.Contains(path, `container="c`)
		})
		return len(inSummary), len(onPage), nil
	}
	has := func(want int) {
		t.Helper()
		await(t, patience, fmt.Sprintf("figures of %d containers", want), func() error {
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
			p := onNode(plain(fmt.Sprintf("churn-%d-%d", wave, i)), s.NodeName())
			c := p.Spec.Containers[0]
			p.Spec.Containers = nil
			for n := range churnContainers {
				c.Name = fmt.Sprintf("c%d", n)
				p.Spec.Containers = append(p.Spec.Containers, c)
			}
			pods, names = append(pods, p), append(names, p.Name)
		}
		s.create(pods...)
		s.ready(2*patience, names...)
		has(churnPods * churnContainers)
		s.remove(names...)
		s.wait(2*patience, "the end of a wave", s.areGone(names...))
		has(0)
		memory, err := machine.Anonymous(pid)
		if err != nil {
			t.Fatalf("stats has ended: %v", err)
		}
		t.Logf("after %d containers stats has %.1f MiB of anonymous memory", (wave+1)*churnPods*churnContainers, float64(memory)/(1<<20))
		if wave == churnWarm-1 {
			warm = memory
		}
		if wave >= churnWarm && memory > warm+churnSlack {
			t.Errorf("its memory grows: %d bytes after wave %d, %d after wave %d", warm, churnWarm, memory, wave+1)
		}
	}
}
