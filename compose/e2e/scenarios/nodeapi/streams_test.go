//go:build long

package nodeapi

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/streamload"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

const (
	// watched is how long memory is looked at.
	watched = time.Minute
	// perStream is how much nodeapi may grow for each stream. The follower of a log holds a reader of the kernel's
	// notifications, with a buffer that makes its stack 128 KiB, and some 30 KiB of buffers and other stacks. A session
	// holds two buffers of 32 KiB to copy with, and the buffers of TLS and HTTP. What is not on a stack counts twice,
	// since Go's collector comes when it has doubled.
	perStream = 256 << 10
	// flat is how much memory may grow between two looks at a load that stays the same.
	flat = 8 << 20
)

// TestAudience: two hundred followers of logs and fifty sessions, of which some stop reading, cost nodeapi a bounded
// memory, and podsync none; nothing that is read is lost; and nodeapi's death ends these streams and nothing else.
func TestAudience(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	w := s.CreateSteadyPods()
	streamload.CreatePods(s)
	pids := map[string]int{"nodeapi": s.MustPID(t, role.NodeAPI), "podsync": s.MustPID(t, role.Podsync)}
	s.KubectlPrints("number", "exec", "talks", "--", "echo", "number") // what is loaded on first use is there
	before := memory(t, pids)
	a := streamload.Start(s, t)
	began := time.Now()
	table := fmt.Sprintf("| RSS (MiB) | before | with %d streams, after 10 s | after %s |\n|---|---|---|---|\n",
		streamload.Streams, watched)
	time.Sleep(time.Until(began.Add(10 * time.Second)))
	soon := memory(t, pids)
	lines, spoken := a.Lines.Load(), a.Spoken.Load()
	time.Sleep(time.Until(began.Add(watched)))
	late := memory(t, pids)
	for _, name := range []string{"nodeapi", "podsync"} {
		table += fmt.Sprintf("| %s | %.1f | %.1f | %.1f |\n", name, mib(before[name]), mib(soon[name]), mib(late[name]))
	}
	seconds := (watched - 10*time.Second).Seconds()
	t.Logf("%sdelivered: %.0f lines and %.0f answers a second; nodeapi grew by %.0f KiB a stream", table,
		float64(a.Lines.Load()-lines)/seconds, float64(a.Spoken.Load()-spoken)/seconds,
		float64(late["nodeapi"]-before["nodeapi"])/streamload.Streams/1024)
	if late["nodeapi"]-before["nodeapi"] > streamload.Streams*perStream {
		t.Errorf("nodeapi grew by %.1f MiB with %d streams, more than %d KiB each",
			mib(late["nodeapi"]-before["nodeapi"]), streamload.Streams, perStream>>10)
	}
	if grew := late["nodeapi"] - soon["nodeapi"]; grew > flat {
		t.Errorf("nodeapi grew by %.1f MiB while its load stayed the same", mib(grew))
	}
	if grew := late["podsync"] - before["podsync"]; grew > flat {
		t.Errorf("podsync grew by %.1f MiB by streams that do not pass through it", mib(grew))
	}
	if problems := a.Faults(); len(problems) > 0 {
		t.Errorf("of the streams went wrong:\n%s", strings.Join(problems, "\n"))
	}
	// How many is the machine's matter, that none of them stands still is nodeapi's. Each line is looked at by who
	// follows.
	if got := a.Lines.Load() - lines; got < streamload.Followers {
		t.Errorf("%d lines were delivered to %d followers in %.0f s", got, streamload.Followers, seconds)
	}

	s.Signal(t, syscall.SIGKILL, role.NodeAPI)
	killed := time.Now()
	scene.Await(t, scene.Patience, "a session after nodeapi's death", func() error {
		_, problems, err := s.RunKubectl(nil, "exec", "talks", "--", "true")
		if err != nil {
			return fmt.Errorf("%w: %s", err, problems)
		}
		return nil
	})
	back := time.Since(killed)
	s.KubectlPrints("wrote", "get", "pods", "-o", "name") // the control plane has noticed nothing
	s.KubectlPrints("] 0 ", "logs", "writes-0", "--limit-bytes=200")
	scene.Await(t, scene.Patience, "the end of all streams that nodeapi's death cut", func() error {
		if n := a.Ended.Load(); n < streamload.Followers+streamload.Talkers+streamload.Silent {
			return fmt.Errorf("%d of %d have ended", n, streamload.Followers+streamload.Talkers+streamload.Silent)
		}
		return nil
	})
	t.Logf("after SIGKILL of nodeapi: a new session after %s, all streams that read had ended after %s",
		scene.Milliseconds(back),
		scene.Milliseconds(time.Since(killed)))
	a.Stop()
	w.Untouched()
	w.NodeReady()
	if pid := s.MustPID(t, role.Podsync); pid != pids["podsync"] {
		t.Errorf("podsync was pid %d and is %d", pids["podsync"], pid)
	}
	s.WaitHealthy(t, scene.Patience)
}

func memory(t *testing.T, pids map[string]int) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	for name, pid := range pids {
		var err error
		if all[name], err = machine.RSS(pid); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
