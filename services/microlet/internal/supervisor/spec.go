package supervisor

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Cgroup is one that a process is started in.
type Cgroup interface {
	// Enter makes the process begin in the cgroup, where the kernel can do that; leave is called when it has begun.
	Enter(attr *syscall.SysProcAttr) (leave func(), err error)
	// Add moves a process into it that has begun elsewhere.
	Add(pid int) error
	// Kill ends all processes in it.
	Kill() error
}

// Spec is one process.
type Spec struct {
	// Name of the process: that of its service.
	Name string
	// Services are those that the process holds; empty is one of the process's name. Each says of itself what it does
	// (ServiceKey), and the process is ready when all are.
	Services []string
	// Path of the program, and its arguments without the program's own name.
	Path string
	Args []string
	// Fallback is a program that runs with the same arguments where Path cannot be started. Empty is none.
	Fallback string
	// Env is the process's environment, beside NOTIFY_SOCKET and WATCHDOG_USEC. Nothing is taken from the
	// supervisor's.
	Env []string
	// UID, GID and Groups that the process runs as.
	UID, GID int
	Groups   []int
	// Capabilities that a process that is not root keeps, such as "CAP_SYSLOG".
	Capabilities []string
	// NoNewPrivileges keeps the process from ever gaining more, by a set-user-id program say.
	NoNewPrivileges bool
	// Nice is added to the supervisor's own niceness, up to 19: a process that is nicer gives way to the
	// others where they want more processor than there is. See sched(7).
	Nice int
	// PrivateNetwork gives the process a network of its own with a single device: a loopback that is down. Where the
	// kernel refuses that, the log says so, and the process has the supervisor's network.
	PrivateNetwork bool
	// Writable are folders. A process with NoNewPrivileges may write below them only, also where its user may write
	// elsewhere. Where the kernel cannot enforce that, the log says so. Empty forbids nothing.
	Writable []string
	// Hidden are folders and files that the process does not see. Where the kernel refuses that, the log says so, and the
	// process sees them. Empty hides nothing.
	Hidden []string
	// OOMScoreAdj is the process's adjustment of the OOM killer's score; 0 leaves it the supervisor's.
	OOMScoreAdj int
	// Cgroup is the process's own; nil starts it in the supervisor's. A process that cannot be brought there runs all the
	// same, and the log says so.
	Cgroup Cgroup
	// KeptFiles is how many files the supervisor keeps open for the process's successor (FDSTORE=1 of sd_notify(3)).
	// Default: 0, none.
	KeptFiles int
	// OnDemand has the process start only when there is something to do for it; nil starts it with the supervisor.
	OnDemand *OnDemand
	// StopStage orders the stop: those of stage 0 first, then 1 and so on; one stage stops at once.
	StopStage int
	// Exclusive says what the process holds that a successor needs and cannot have while it lives, such as a lock.
	// There is then no successor to one that was killed and does not end. Empty holds nothing.
	Exclusive string
	// Release frees what a process holds that was killed and does not end, before its successor is started. Nil
	// frees nothing.
	Release func() error

	// sockets are those of OnDemand, once they are open.
	sockets []socket
}

// services are those that the process holds.
func (s Spec) services() []string {
	if len(s.Services) == 0 {
		return []string{s.Name}
	}
	return s.Services
}

// Options say what is supervised and how.
type Options struct {
	// Specs in start order: each waits for READY of the one before, for StartWait at most.
	Specs []Spec
	// NotifyDir is an existing folder for the notification sockets.
	NotifyDir string
	// Watchdog is how long a ready process may go without WATCHDOG=1; 0 is for ever.
	Watchdog time.Duration
	// StartWait bounds the wait for READY of the process before at the start. Default: 1 s.
	StartWait time.Duration
	// StartTimeout is how long a process may take to its first READY or WATCHDOG before the watchdog
	// counts it as hung. Default: 90 s, as systemd's.
	StartTimeout time.Duration
	// ReadyWait bounds the wait for all processes before OnReady is called regardless. Default: 30 s.
	ReadyWait time.Duration
	// StopTimeout is how long one process may take to stop before it is killed. Default: 10 s.
	StopTimeout time.Duration
	// StageTimeout is how long a stage of the stop waits before the next begins. Default: 4 s.
	StageTimeout time.Duration
	// StopTotal bounds the whole stop: what still runs then is killed. Default: 13 s.
	StopTotal time.Duration
	// Output is the one log stream, and Format its lines' ("text" or "json").
	Output io.Writer
	Format string
	// Log is the supervisor's own. Default: slog's.
	Log *slog.Logger
	// Metrics gets the counts of restarts and kills. Nil counts nowhere.
	Metrics prometheus.Registerer
	// OnTurn is called in each round of the supervisor's own loop, once a second.
	OnTurn func()
	// OnReady is called once, when every process was ready or ReadyWait is over.
	OnReady func(status string)
}

func (o *Options) complete() error {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.StartWait, time.Second},
		{&o.StartTimeout, 90 * time.Second},
		{&o.ReadyWait, 30 * time.Second},
		{&o.StopTimeout, 10 * time.Second},
		{&o.StageTimeout, 4 * time.Second},
		{&o.StopTotal, 13 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.OnTurn == nil {
		o.OnTurn = func() {}
	}
	if o.OnReady == nil {
		o.OnReady = func(string) {}
	}
	seen := map[string]bool{}
	for _, s := range o.Specs {
		for _, name := range s.services() {
			if name == "" || seen[name] {
				return fmt.Errorf("process %q: give each a name of its own", name)
			}
			seen[name] = true
		}
	}
	if len(o.Specs) == 0 {
		return errors.New("no process to supervise")
	}
	return nil
}

// State is where a process is in its life.
type State int

// The states of a process.
const (
	Waiting  State = iota // not started yet
	Starting              // started, and not ready yet
	Ready                 // said READY=1
	Backoff               // ended, and waits for its next start
	Stopping              // asked to stop
	Stopped               // ended after it was asked to stop
	Stuck                 // killed, does not end, and keeps its successor from starting
	External              // started by something else
	Idle                  // runs on demand, and is not needed yet
)

// Process is the account of one process at one time.
type Process struct {
	Name string
	// Args are its arguments without the program's own name.
	Args  []string
	State State
	// PID is 0 while there is no process.
	PID int
	// Started is when the process, or the last one, was started.
	Started time.Time
	// Restarts counts the starts after the first.
	Restarts int
	// LastExit says why it ended last, empty if it never did.
	LastExit string
	// Status is what the process said last with STATUS=.
	Status string
	// Stuck are those before it that were killed and do not end.
	Stuck []StuckProcess
	// Services are those that the process holds, if they are several.
	Services []Service
}

// Service is one of several services of a process.
type Service struct {
	Name   string
	State  State
	Status string
}
