package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/logkey"
)

// pipeSize is the room of a process's log between two looks of the supervisor; the kernel gives less
// to who may have no more.
const pipeSize = 1 << 20

// timerSlack is how late the kernel may wake a process's timers. Go's own look at its threads, which sleeps 20 µs at
// first, is most of them: with the kernel's default of 50 µs it is an eighth of what services use that wake often
// and for little. No service has a time that 1 ms would matter to.
const timerSlack = time.Millisecond

// capabilities that a Spec may name.
var capabilities = map[string]uintptr{
	"CAP_DAC_OVERRIDE":     unix.CAP_DAC_OVERRIDE,
	"CAP_DAC_READ_SEARCH":  unix.CAP_DAC_READ_SEARCH,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"CAP_SYSLOG":           unix.CAP_SYSLOG,
}

// thread runs functions on one thread of the operating system that never ends: the parent-death
// signal of a process comes when the thread that started it ends, not its process.
type thread struct{ work chan func() }

// newThread starts the thread. What prepare does to it is passed on to all that it starts.
func newThread(prepare func() error) (*thread, error) {
	t := &thread{work: make(chan func())}
	started, found := make(chan error, 1), make(chan struct{})
	var own func()
	own = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// What is done to the main thread looks as if it were done to the whole process.
			go own()
			<-found
			runtime.UnlockOSThread()
			return
		}
		close(found)
		if err := prepare(); err != nil {
			started <- err
			return // the thread ends, since it is locked
		}
		started <- nil
		for f := range t.work {
			f()
		}
	}
	go own()
	return t, <-started
}

func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); f() }
	<-done
}

// errBounding is wrapped by the error of who may not give up capabilities.
var errBounding = errors.New("capabilities cannot be taken from what this process starts: give it CAP_SETPCAP")

// bind makes the calling thread one that gains no privileges, nor do those that it starts, and that has
// no capability in its bounding set but these.
func bind(keep []string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	for c := uintptr(0); ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil { // the kernel has no more of them
			return nil
		}
		kept := slices.ContainsFunc(keep,
			func(name string) bool { known, ok := capabilities[name]; return ok && known == c })
		if has == 0 || kept {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("%w (%w)", errBounding, err)
		}
	}
}

// spawner starts real processes.
type spawner struct {
	options *Options
	stream  *stream
	metrics *metrics

	mu      sync.Mutex
	threads map[inherited]*thread
	kept    map[string]*keptFiles // by the process's name
}

// inherited is what a process has of the thread that starts it.
type inherited struct {
	bound        bool   // no new privileges
	capabilities string // that a bound one is left with
	nice         int
	network      string // the process that has it for itself; empty is the supervisor's
	writable     string // the folders that it may write to; empty is all
	hidden       string // what it does not see
}

var _ launcher = (*spawner)(nil)

func newSpawner(o *Options, m *metrics) *spawner {
	return &spawner{options: o, stream: newStream(o.Output, o.Format), metrics: m, threads: map[inherited]*thread{},
		kept: map[string]*keptFiles{}}
}

// thread is the one that starts the process.
func (sp *spawner) thread(s Spec) (*thread, error) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	key := inherited{bound: s.NoNewPrivileges, nice: s.Nice}
	if s.NoNewPrivileges {
		key.capabilities = strings.Join(s.Capabilities, " ")
	}
	if s.PrivateNetwork {
		key.network = s.Name
	}
	key.writable, key.hidden = strings.Join(s.Writable, "\x00"), strings.Join(s.Hidden, "\x00")
	if t, ok := sp.threads[key]; ok {
		return t, nil
	}
	t, err := newThread(func() error {
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack.Nanoseconds()), 0, 0, 0); err != nil {
			sp.options.Log.Warn("process has no timer slack", "process", s.Name, logkey.Err, err)
		}
		if err := giveWay(s.Nice); err != nil {
			sp.options.Log.Warn("process does not give way to others", "process", s.Name, logkey.Err, err)
		}
		if s.PrivateNetwork {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				sp.options.Log.Warn("process has the node's network", "process", s.Name, logkey.Err, err)
			}
		}
		if len(s.Hidden) > 0 {
			if err := hide(s.Hidden); err != nil {
				sp.options.Log.Warn("process sees what is hidden from it elsewhere", "process", s.Name, logkey.Err, err)
			}
		}
		if !s.NoNewPrivileges {
			return nil
		}
		err := bind(s.Capabilities)
		if errors.Is(err, errBounding) {
			// They could be gained in no way but by new privileges, which are given up already.
			sp.options.Log.Warn("bounding set stays as it is", logkey.Err, err)
			err = nil
		}
		if err == nil && len(s.Writable) > 0 {
			if err := confine(s.Writable); err != nil {
				sp.options.Log.Warn("process may write wherever its user may", "process", s.Name, logkey.Err, err)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	sp.threads[key] = t
	return t, nil
}

// giveWay adds to the niceness of the calling thread, and of those that it starts.
func giveWay(nice int) error {
	if nice == 0 {
		return nil
	}
	// The kernel's own call counts from 40, least nice, to 1, so that no answer looks like an error.
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return fmt.Errorf("ask for the own niceness: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, min(20-own+nice, 19)); err != nil {
		return fmt.Errorf("add %d to the niceness: %w", nice, err)
	}
	return nil
}

// command is the process as the Spec wants it.
func (sp *spawner) command(s Spec, path, notifySocket string) (*exec.Cmd, error) {
	attr := &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// Its own session, and so its own process group. A terminal's Ctrl-C is for the supervisor, which stops in order,
		// and a process may not type into the terminal of the shell that has started the supervisor.
		Setsid: true,
	}
	if s.UID != os.Geteuid() || s.GID != os.Getegid() || s.UID != 0 {
		groups := make([]uint32, 0, len(s.Groups))
		for _, g := range s.Groups {
			groups = append(groups, uint32(g))
		}
		attr.Credential = &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID), Groups: groups}
	}
	for _, name := range s.Capabilities {
		c, ok := capabilities[name]
		if !ok {
			return nil, fmt.Errorf("capability %s is not known to the supervisor", name)
		}
		attr.AmbientCaps = append(attr.AmbientCaps, c)
	}
	cmd := &exec.Cmd{ // its standard input is /dev/null
		Path:        path,
		Args:        append([]string{s.Path}, s.Args...),
		Env:         append(slices.Clone(s.Env), "NOTIFY_SOCKET="+notifySocket),
		Dir:         "/",
		SysProcAttr: attr,
	}
	if w := sp.options.Watchdog; w > 0 {
		cmd.Env = append(cmd.Env, "WATCHDOG_USEC="+strconv.FormatInt(w.Microseconds(), 10))
	}
	return cmd, nil
}

// launch starts the process, and what listens to it.
func (sp *spawner) launch(s Spec) (process, error) {
	if err := killLeft(s.Cgroup); err != nil { // by a supervisor that was killed
		sp.options.Log.Warn("what a process has left behind may still run", "process", s.Name, logkey.Err, err)
	}
	box, err := openMailbox(filepath.Join(sp.options.NotifyDir, s.services()[0]+".sock"), s.UID)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log pipe: %w", err), box.close())
	}
	_, _ = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize) // more room is better and none is needed

	kept := sp.keptFor(s)
	cmd, err := sp.start(s, box.path, w, kept)
	err = errors.Join(err, w.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", s.Name, err), r.Close(), box.close())
	}
	if err := adjustScore(cmd.Process.Pid, s.OOMScoreAdj); err != nil {
		sp.options.Log.Warn("process has the supervisor's score of the OOM killer", "process", s.Name, logkey.Err, err)
	}
	p := &realProcess{
		cmd: cmd, box: box, cgroup: s.Cgroup,
		received: make(chan note, 16),
		ended:    make(chan string, 1),
		closed:   make(chan struct{}),
	}
	go func() { // ends when the last holder of the pipe's other end does
		sp.stream.copy(s.Name, r, s.Services...)
		_ = r.Close()
	}()
	go box.read(cmd.Process.Pid, p.received, kept, p.closed, sp.options.Log.With("process", s.Name),
		sp.metrics.refused.WithLabelValues(s.services()[0]).Inc)
	go p.wait()
	return p, nil
}

// adjustScore sets how early the OOM killer takes a process, and those that it starts. The process may have ended.
func adjustScore(pid, score int) error {
	if score == 0 {
		return nil
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// keptFor returns the files of the process's predecessors, nil for a process that may keep none.
func (sp *spawner) keptFor(s Spec) *keptFiles {
	if s.KeptFiles == 0 {
		return nil
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.kept[s.Name] == nil {
		sp.kept[s.Name] = &keptFiles{most: s.KeptFiles}
	}
	return sp.kept[s.Name]
}

// start starts the program, or the one that stands in for it.
func (sp *spawner) start(s Spec, notifySocket string, out *os.File, kept *keptFiles) (*exec.Cmd, error) {
	t, err := sp.thread(s)
	if err != nil {
		return nil, err
	}
	start := func(path string) (*exec.Cmd, error) {
		cmd, err := sp.command(s, path, notifySocket)
		if err != nil {
			return nil, err
		}
		cmd.Stdout, cmd.Stderr = out, out
		inherit(cmd, s.sockets, kept)
		return cmd, sp.startIn(s.Cgroup, t, cmd)
	}
	cmd, err := startReachable(s.Path, start)
	if err != nil && s.Fallback != "" {
		sp.options.Log.Warn("program cannot be started, another one runs in its place", "process", s.Name,
			"program", s.Path, "other", s.Fallback, logkey.Err, err)
		s.Path = s.Fallback
		cmd, err = startReachable(s.Path, start)
	}
	if err != nil {
		return nil, err
	}
	return cmd, nil
}

// startReachable starts a program also if it lies in a folder of root's, which its own user may not enter: root opens
// the file, so the user needs no right but to execute it.
func startReachable(path string, start func(path string) (*exec.Cmd, error)) (*exec.Cmd, error) {
	cmd, err := start(path)
	if !errors.Is(err, fs.ErrPermission) {
		return cmd, err
	}
	fd, openErr := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if openErr != nil {
		return nil, errors.Join(err, &os.PathError{Op: "open", Path: path, Err: openErr})
	}
	defer func() { _ = unix.Close(fd) }()
	// A child has its files at the first numbers, in place of whatever was there.
	above, openErr := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, mostChildFiles)
	if openErr != nil {
		return nil, errors.Join(err, fmt.Errorf("fcntl: %w", openErr))
	}
	defer func() { _ = unix.Close(above) }()
	return start("/proc/self/fd/" + strconv.Itoa(above))
}

// mostChildFiles is more than the files that any child is given.
const mostChildFiles = 512

// startIn starts the command, in the cgroup if there is one.
func (sp *spawner) startIn(cgroup Cgroup, t *thread, cmd *exec.Cmd) (err error) {
	if cgroup == nil {
		t.do(func() { err = cmd.Start() })
		return err
	}
	leave, enterErr := cgroup.Enter(cmd.SysProcAttr)
	t.do(func() { err = cmd.Start() })
	if enterErr == nil {
		leave()
	}
	if err != nil {
		return err
	}
	if err := errors.Join(enterErr, cgroup.Add(cmd.Process.Pid)); err != nil {
		sp.options.Log.Error("process runs without its limits", logkey.PID, cmd.Process.Pid, logkey.Err, err)
	}
	return nil
}

// realProcess is a process of the operating system.
type realProcess struct {
	cmd      *exec.Cmd
	box      *mailbox
	cgroup   Cgroup
	received chan note
	ended    chan string
	closed   chan struct{}
}

func (p *realProcess) pid() int              { return p.cmd.Process.Pid }
func (p *realProcess) notes() <-chan note    { return p.received }
func (p *realProcess) exited() <-chan string { return p.ended }

func (p *realProcess) signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (p *realProcess) stuck() (string, bool) { return stuck("/proc", p.pid()) }

// wait reaps the process. What it started and left behind ends with it: the group is killed while
// the process is still there as a zombie, so that no other process has its number.
func (p *realProcess) wait() {
	for {
		err := unix.Waitid(unix.P_PID, p.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-p.pid(), unix.SIGKILL) // no group is the rule
	err := p.cmd.Wait()
	if p.cmd.ProcessState != nil {
		p.ended <- p.cmd.ProcessState.String()
		return
	}
	p.ended <- fmt.Sprintf("wait: %v", err)
}

// killLeft ends what a process has left behind in sessions of their own, and kills once more one that does not end. A
// process without a cgroup may leave some.
func killLeft(c Cgroup) error {
	if c == nil {
		return nil
	}
	return c.Kill()
}

// close ends what listened to the process, and what it has left behind.
func (p *realProcess) close() error {
	close(p.closed)
	err := errors.Join(killLeft(p.cgroup), p.box.close())
	// The reader is done with its last message before the next process gets the same path.
	timeout := time.After(time.Second)
	for {
		select {
		case _, ok := <-p.received:
			if !ok {
				return err
			}
		case <-timeout:
			return errors.Join(err, errors.New("notification socket still being read"))
		}
	}
}
