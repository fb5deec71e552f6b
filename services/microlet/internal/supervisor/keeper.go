package supervisor

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
)

// abortWait is how long an aborted process has to write its goroutine dump before it is killed.
const abortWait = 500 * time.Millisecond

// restartAsked is why a process ended that an operator restarted.
const restartAsked = "restarted by an operator"

// launcher starts processes.
type launcher interface {
	launch(Spec) (process, error)
}

// process is a started process, as its keeper needs it.
type process interface {
	pid() int
	// notes gives its notifications; it may be closed.
	notes() <-chan note
	// exited gives once how it ended.
	exited() <-chan string
	signal(syscall.Signal) error
	// stuck reports whether it was killed and does not end, and what its threads wait for.
	stuck() (waitsFor string, is bool)
	// close frees what is left of an ended process.
	close() error
}

// keeper keeps one process alive.
type keeper struct {
	spec     Spec
	options  *Options
	launcher launcher
	metrics  *metrics
	log      *slog.Logger

	begun      chan struct{}  // closed with firstReady, or at the first READY=1 of the first of several services
	firstReady chan struct{}  // closed at the first READY=1, or when the process is not needed yet
	stopping   chan struct{}  // closed to stop
	kill       chan struct{}  // closed when the stop's time is over
	done       chan struct{}  // closed when run has returned
	again      signal.Signal  // holds one when the process shall be restarted
	freed      signal.Signal  // holds one when a process that was stuck has ended
	watches    sync.WaitGroup // over the processes that are stuck

	mu      sync.Mutex
	account Process
}

func newKeeper(s Spec, o *Options, l launcher, m *metrics) *keeper {
	for _, name := range s.services() {
		m.stuck.WithLabelValues(name).Set(0)
		m.restarts.WithLabelValues(name) // so that the first one is an increase
		m.watchdog.WithLabelValues(name)
	}
	account := Process{Name: s.Name, Args: s.Args}
	account.begin(s.Services)
	return &keeper{
		spec: s, options: o, launcher: l, metrics: m,
		log:        o.Log.With("process", s.Name),
		begun:      make(chan struct{}),
		firstReady: make(chan struct{}),
		stopping:   make(chan struct{}),
		kill:       make(chan struct{}),
		done:       make(chan struct{}),
		again:      signal.New(),
		freed:      signal.New(),
		account:    account,
	}
}

// snapshot is the account as it is now.
func (k *keeper) snapshot() Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account
}

func (k *keeper) update(f func(*Process)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.account)
}

func (k *keeper) asked() bool {
	select {
	case <-k.stopping:
		return true
	default:
		return false
	}
}

// run starts the process again and again until it is asked to stop.
func (k *keeper) run() {
	defer close(k.done)
	defer k.watches.Wait()
	defer func() { closeSockets(k.spec.sockets) }()
	if !k.await() {
		k.update(func(p *Process) { p.State = Stopped })
		return
	}
	var b backoff
	for starts := 0; !k.asked(); starts++ {
		began := time.Now()
		k.update(func(p *Process) {
			p.State, p.Started, p.Status = Starting, began, ""
			p.begin(k.spec.Services)
			if starts > 0 {
				p.Restarts++
			}
		})
		if starts > 0 {
			k.spec.count(k.metrics.restarts)
		}
		k.forgetRestart()
		why := k.live()
		lived := time.Since(began)
		k.update(func(p *Process) { p.PID, p.LastExit, p.State = 0, why, Backoff })
		if k.asked() {
			break
		}
		delay := time.Duration(0)
		if why != restartAsked {
			delay = b.next(lived)
		}
		k.log.Warn("process ended and is started again", logkey.Reason, why, "lived", lived.Round(time.Millisecond),
			logkey.Delay, delay)
		select {
		case <-time.After(delay):
		case <-k.again:
		case <-k.stopping:
		}
		k.awaitRoom()
	}
	k.update(func(p *Process) { p.State = Stopped })
}

// live starts the process once and stays until it has ended, or is dead and does not end; it returns why.
func (k *keeper) live() (why string) {
	p, err := k.launcher.launch(k.spec)
	if err != nil {
		return err.Error()
	}
	defer func() {
		if err := p.close(); err != nil {
			k.log.Warn("process not cleaned up", logkey.Err, err)
		}
	}()
	k.log.Info("process started", logkey.PID, p.pid())
	k.update(func(a *Process) { a.PID = p.pid() })
	l := &lifetime{keeper: k, p: p, dog: newWatchdog(k.options.Watchdog, k.options.StartTimeout, time.Now())}
	return l.run()
}

// lifetime is one process from its start to its end.
type lifetime struct {
	*keeper
	p   process
	dog *watchdog
	// why the keeper ends the process; empty while it does not.
	why    string
	killAt <-chan time.Time
	dead   int // looks in a row that found it dead
}

// run returns why the process has ended, or is given up.
func (l *lifetime) run() string {
	looks := time.NewTimer(l.dog.wait(time.Now()))
	defer looks.Stop()
	notes, stopping, kill := l.p.notes(), l.stopping, l.kill
	for {
		select {
		case how := <-l.p.exited():
			return cmp.Or(l.why, how)
		case n, ok := <-notes:
			if !ok {
				notes = nil
				continue
			}
			l.take(n, l.dog)
		case <-looks.C:
			now := time.Now()
			expired := l.dog.expired(now)
			looks.Reset(l.dog.wait(now))
			if l.isStuck(now) {
				return strings.TrimPrefix(l.why+"; ", "; ") +
					fmt.Sprintf("pid %d was killed and does not end", l.p.pid())
			}
			if expired && l.why == "" {
				l.abort()
			}
		case <-l.again:
			l.why = cmp.Or(l.why, restartAsked)
			l.stop()
		case <-stopping:
			stopping = nil
			l.stop()
		case <-kill:
			kill = nil
			l.log.Error("process killed: the stop took too long", logkey.PID, l.p.pid())
			l.send(l.p, syscall.SIGKILL)
		case <-l.killAt:
			l.killAt = nil
			if l.asked() || l.why == restartAsked {
				l.log.Error("process killed: it did not stop in time", logkey.PID, l.p.pid())
			}
			l.send(l.p, syscall.SIGKILL)
		}
	}
}

// isStuck reports whether the process was dead for so many looks that it is given up, and leaves it if so.
func (l *lifetime) isStuck(now time.Time) bool {
	waitsFor, is := l.look(l.p, l.why != "" || l.dog.quiet(now))
	if !is {
		l.dead = 0
		return false
	}
	l.dead++
	if l.dead != stuckLooks {
		return false
	}
	l.leave(l.p, waitsFor)
	return true
}

// abort ends a process that hangs, in a way that lets it show what hangs.
func (l *lifetime) abort() {
	l.why = "watchdog: silent for " + l.options.Watchdog.String()
	l.spec.count(l.metrics.watchdog)
	l.log.Error("process hangs and is killed", logkey.PID, l.p.pid(), "silent", l.options.Watchdog)
	l.send(l.p, syscall.SIGABRT)
	l.killAt = time.After(abortWait)
}

// stop asks the process to end.
func (l *lifetime) stop() {
	l.dog.off()
	l.update(func(a *Process) { a.State = Stopping })
	l.send(l.p, syscall.SIGTERM)
	if l.killAt == nil {
		l.killAt = time.After(l.options.StopTimeout)
	}
}

// look asks a process that gives no sign of life whether it is dead and does not end.
func (k *keeper) look(p process, quiet bool) (waitsFor string, is bool) {
	if !quiet {
		return "", false
	}
	return p.stuck()
}

// take does what a notification says.
func (k *keeper) take(n note, dog *watchdog) {
	if n.service != "" {
		k.takeOf(n)
		return
	}
	now := time.Now()
	if n.watchdog {
		dog.fed(now)
	}
	if n.stopping {
		dog.off()
	}
	k.update(func(p *Process) {
		if n.hasStatus {
			p.Status = n.status
		}
		if n.stopping {
			p.State = Stopping
		}
		if n.ready && p.State == Starting {
			p.State = Ready
			dog.ready(now)
			k.log.Info("process is ready", logkey.After, now.Sub(p.Started).Round(time.Millisecond))
			k.settle()
		}
	})
}

// takeOf does what a notification says of one of several services.
func (k *keeper) takeOf(n note) {
	k.update(func(p *Process) {
		all := slices.Clone(p.Services) // others read the ones before
		i := slices.IndexFunc(all, func(s Service) bool { return s.Name == n.service })
		if i < 0 {
			return
		}
		if n.hasStatus {
			all[i].Status = n.status
		}
		if n.stopping {
			all[i].State = Stopping
		}
		if n.ready && all[i].State == Starting {
			all[i].State = Ready
			if i == 0 {
				closeOnce(k.begun)
			}
		}
		p.Services = all
	})
}

// begin has the services start with their process.
func (p *Process) begin(services []string) {
	p.Services = nil
	for _, name := range services {
		p.Services = append(p.Services, Service{Name: name, State: Starting})
	}
}

// count adds one to what is counted of each service.
func (s Spec) count(counter *prometheus.CounterVec) {
	for _, name := range s.services() {
		counter.WithLabelValues(name).Inc()
	}
}

func (k *keeper) send(p process, s syscall.Signal) {
	if err := p.signal(s); err != nil {
		k.log.Error("signal not sent", "signal", s.String(), logkey.PID, p.pid(), logkey.Err, err)
	}
}
