package diskusage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/childpool"
)

const (
	// sliceTime is how long a slice may take, so that the parent knows soon that the child does not hang.
	sliceTime = 200 * time.Millisecond

	// maxWalks bounds the walks that are under way in one child.
	maxWalks = 8

	// maxLarge is how many of them may be of large directories. The other places are for those that are soon done.
	maxLarge = maxWalks / 2
)

// program is what this binary does as a child.
var program = childpool.Program("microlet-walk", func() childpool.Table {
	runtime.LockOSThread() // so that the thread that walks is one that gives way
	if err := giveWay(); err != nil {
		fmt.Fprintln(os.Stderr, "child that measures directories does not give way to others:", err)
	}
	return walks{}.operations()
})

// RunChild is what a program calls first of all. If the process was started to be a child, it measures what its parent
// asks for, and returns true when the program is to end. Without this call no child is started.
func RunChild() bool { return program.Run() }

// giveWay makes the process the last to get a processor or a disk, and the first that the OOM killer takes.
func giveWay() error {
	const (
		leastNice = 19
		// From linux/ioprio.h.
		whoProcess, idleClass = 1, 3 << 13
	)
	// Linux has both per thread, and a thread passes them on to those that it starts.
	tasks, err := os.ReadDir("/proc/self/task")
	errs := []error{err}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, tid, leastNice); err != nil {
			errs = append(errs, fmt.Errorf("priority: %w", err))
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, uintptr(tid), idleClass); errno != 0 {
			errs = append(errs, fmt.Errorf("I/O class: %w", errno))
		}
	}
	errs = append(errs, os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0))
	return errors.Join(errs...)
}

// walks are those that are under way in this child.
type walks map[uint64]*walk

func (ws walks) operations() childpool.Table {
	t := childpool.Table{}
	childpool.Handle(t, measureSlice, func(_ context.Context, q request) (*answer, error) { return ws.serve(&q), nil })
	return t
}

// serve goes on with the walk, or begins it.
func (ws walks) serve(q *request) *answer {
	for _, dropped := range q.Drop {
		if w := ws[dropped]; w != nil {
			w.close()
			delete(ws, dropped)
		}
	}
	a := &answer{Walk: q.Walk}
	w := ws[q.Walk]
	if w == nil {
		var err error
		if w, err = ws.begin(q); err != nil {
			a.Done = true
			a.Gone = errors.Is(err, unix.ENOENT)
			a.Error = fmt.Sprintf("%.*s", maxReason/2, err)
			return a
		}
	}
	a.Entries, a.Done = w.step(q.Entries, time.Now().Add(sliceTime))
	a.Usage = w.usage()
	if a.Done {
		delete(ws, q.Walk)
	}
	return a
}

func (ws walks) begin(q *request) (*walk, error) {
	if len(ws) >= maxWalks {
		return nil, errors.New("too many walks at a time")
	}
	d := Dir{Path: q.Path, Mode: q.Mode}
	if err := d.validate(); err != nil {
		return nil, err
	}
	w, err := newWalk(d)
	if err != nil {
		return nil, err
	}
	ws[q.Walk] = w
	return w, nil
}
