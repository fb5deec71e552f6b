package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// stuckLooks are how many looks in a row must find a dead process before it counts as stuck: one that is just
	// ending looks the same.
	stuckLooks = 2
	// maxStuck is how many predecessors may be left when a successor is started. Each takes memory, and a service that
	// comes to the same end every time must not fill the node with them.
	maxStuck = 3
	// stuckRefresh is the time between two looks at what a stuck process waits for.
	stuckRefresh = 10 * time.Second
	// threadsShown bounds how many of its threads are logged.
	threadsShown = 3
	// framesShown bounds how much of a thread's stack in the kernel is logged.
	framesShown = 4
)

// StuckProcess is one that was killed and does not end, because the kernel does not let a thread of it go: it waits
// for a frozen file system or for a server of a network file system, say.
type StuckProcess struct {
	PID int
	// Since is when it was found to be stuck.
	Since time.Time
	// WaitsFor says where its threads are in the kernel.
	WaitsFor string
}

// stuck reads below proc whether the process was killed and does not end, and where its threads are. Such a process
// still holds its descriptors: locks, ports and connections.
func stuck(proc string, pid int) (waitsFor string, is bool) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "task")
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return "", false // it has ended
	}
	dead := false
	var threads []string
	for _, task := range tasks {
		path := filepath.Join(dir, task.Name())
		switch state := stateOf(path); state {
		case "":
		case "Z", "X":
			// The kernel kept the first thread for the others: the process is dead, and its parent cannot know.
			dead = dead || task.Name() == strconv.Itoa(pid)
		default:
			dead = dead || killPending(path)
			threads = append(threads, fmt.Sprintf("thread %s (state %s) in %s", task.Name(), state, kernelPlace(path)))
		}
	}
	if !dead || len(threads) == 0 {
		return "", false
	}
	if more := len(threads) - threadsShown; more > 0 {
		threads = append(threads[:threadsShown], fmt.Sprintf("%d more", more))
	}
	return strings.Join(threads, ", "), true
}

// stateOf is the letter of a thread's state in proc_pid_stat(5); empty if it has ended.
func stateOf(task string) string {
	data, err := os.ReadFile(filepath.Join(task, "stat"))
	if err != nil {
		return ""
	}
	_, rest, ok := bytes.Cut(data[max(0, bytes.LastIndexByte(data, ')')):], []byte(" ")) // a name may have brackets
	if !ok || len(rest) == 0 {
		return ""
	}
	return string(rest[:1])
}

// killPending reports whether SIGKILL waits for the thread to take it.
func killPending(task string) bool {
	data, err := os.ReadFile(filepath.Join(task, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "SigPnd:"); ok {
			pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && pending&(1<<(syscall.SIGKILL-1)) != 0
		}
	}
	return false
}

// kernelPlace is where a thread waits: the kernel's functions, the innermost first, as far as they may be read.
func kernelPlace(task string) string {
	if data, err := os.ReadFile(filepath.Join(task, "stack")); err == nil {
		var frames []string
		for line := range strings.Lines(string(data)) { // "[<0>] percpu_rwsem_wait+0x15f/0x1d0"
			_, frame, _ := strings.Cut(strings.TrimSpace(line), "] ")
			frame, _, _ = strings.Cut(frame, "+")
			if frame != "" && len(frames) < framesShown {
				frames = append(frames, frame)
			}
		}
		if len(frames) > 0 {
			return strings.Join(frames, " < ")
		}
	}
	data, err := os.ReadFile(filepath.Join(task, "wchan"))
	if where := string(bytes.TrimSpace(data)); err == nil && where != "" && where != "0" {
		return where
	}
	return "an unknown place of the kernel"
}

// leave accounts for a process that does not end, until it does. The keeper waits for the watch's own end.
func (k *keeper) leave(p process, waitsFor string) {
	k.log.Error("process was killed and does not end: the kernel holds it", logkey.PID, p.pid(), "waitsFor", waitsFor)
	k.updateStuck(func(list []StuckProcess) []StuckProcess {
		return append(list, StuckProcess{PID: p.pid(), Since: time.Now(), WaitsFor: waitsFor})
	})
	k.watches.Go(func() {
		t := time.NewTicker(stuckRefresh)
		defer t.Stop()
		for {
			select {
			case <-k.stopping: // it cannot be waited for
				return
			case <-p.exited():
				k.log.Info("process that was stuck has ended", logkey.PID, p.pid())
				k.updateStuck(func(list []StuckProcess) []StuckProcess {
					return deletePID(list, p.pid())
				})
				k.freed.Set()
				return
			case <-t.C:
				if waitsFor, is := p.stuck(); is {
					k.updateStuck(func(list []StuckProcess) []StuckProcess {
						for i := range list {
							if list[i].PID == p.pid() {
								list[i].WaitsFor = waitsFor
							}
						}
						return list
					})
				}
			}
		}
	})
}

func deletePID(list []StuckProcess, pid int) []StuckProcess {
	var rest []StuckProcess
	for _, s := range list {
		if s.PID != pid {
			rest = append(rest, s)
		}
	}
	return rest
}

// updateStuck replaces the list in the account; snapshots keep the one that they have.
func (k *keeper) updateStuck(f func([]StuckProcess) []StuckProcess) {
	k.update(func(p *Process) {
		p.Stuck = f(append([]StuckProcess(nil), p.Stuck...))
		for _, name := range k.spec.services() {
			k.metrics.stuck.WithLabelValues(name).Set(float64(len(p.Stuck)))
		}
	})
}

// awaitRoom waits until a successor may be started beside the processes that are stuck, or until the keeper is asked to
// stop.
func (k *keeper) awaitRoom() {
	for !k.asked() {
		left := k.snapshot().Stuck
		if len(left) == 0 {
			return
		}
		why := k.spec.Exclusive
		if why == "" && len(left) < maxStuck {
			if k.spec.Release != nil {
				if err := k.spec.Release(); err != nil {
					k.log.Warn("successor of a stuck process may find its sockets taken", logkey.Err, err)
				}
			}
			return
		}
		if why == "" {
			why = fmt.Sprintf("one of %d places for processes that do not end", maxStuck)
		}
		k.update(func(p *Process) {
			p.State = Stuck
			p.Status = fmt.Sprintf("waits for pid %d to end, which holds %s", left[0].PID, why)
		})
		select {
		case <-k.freed:
		case <-k.stopping:
		}
	}
}
