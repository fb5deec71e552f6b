package diskusage

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/childprocess"
)

const (
	// sliceTime is how long a slice may take, so that the parent knows soon that the child does not hang.
	sliceTime = 200 * time.Millisecond

	// maxWalks bounds the walks that are under way in one child.
	maxWalks = 8

	// maxLarge is how many of them may be of large directories. The other places are for those that are soon done.
	maxLarge = maxWalks / 2

	// childMemory is the heap at which a child collects garbage more eagerly.
	childMemory = 16 << 20
)

// program is what this binary does as a child.
var program = &childprocess.Program{Name: "microlet-walk", Env: []string{"GOMAXPROCS=1", "GOGC=50"}, Main: childMain}

// RunChild is what a program calls first of all. If the process was started to be a child, it measures what its parent
// asks for, and returns true when the program is to end. Without this call no child is started.
func RunChild() bool { return program.Run() }

func childMain(socket *os.File) error {
	runtime.LockOSThread() // so that the thread that walks is one that gives way
	debug.SetMemoryLimit(childMemory)
	if err := giveWay(); err != nil {
		fmt.Fprintln(os.Stderr, "child that measures directories does not give way to others:", err)
	}
	if err := childprocess.KeepPrivate(); err != nil {
		return err
	}
	return serveWalks(socket, socket)
}

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

// serveWalks answers requests one by one until there are no more.
func serveWalks(r io.Reader, w io.Writer) error {
	requests, out := lines(r), bufio.NewWriter(w)
	answers, walks := json.NewEncoder(out), walks{}
	defer walks.close()
	for requests.Scan() {
		var q request
		if err := json.Unmarshal(requests.Bytes(), &q); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		if err := errors.Join(answers.Encode(walks.serve(&q)), out.Flush()); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return requests.Err()
}

// walks are those that are under way in this child.
type walks map[uint64]*walk

func (ws walks) close() {
	for _, w := range ws {
		w.close()
	}
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
