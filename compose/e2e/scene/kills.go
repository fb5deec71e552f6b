package scene

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/microlet/microlet/proto/role"
)

// Processes is every process of the node agent.
var Processes = append(slices.Clone(Services), role.Up)

// KillDuringStart kills services and creates a pod at that moment, which runs. All services are back when it
// returns, by other processes.
func (s *Scene) KillDuringStart(name string, roles ...role.Role) string {
	s.T.Helper()
	return s.DuringStart(name, func() { s.Signal(s.T, syscall.SIGKILL, roles...) }, roles...)
}

// DuringStart has something end services and creates a pod at that moment, which runs. It returns how long the pod's
// start takes. All services are back when it returns, by other processes.
func (s *Scene) DuringStart(name string, end func(), roles ...role.Role) string {
	s.T.Helper()
	s.WaitHealthy(s.T, Patience)
	before := map[role.Role]int{}
	for _, r := range roles {
		before[r] = s.MustPID(s.T, r)
	}
	end()
	s.CreatePods(PausePod(name))
	s.WaitReady(Patience, name)
	s.WaitHealthy(s.T, Patience)
	for _, r := range roles {
		if s.PID(r) == before[r] {
			s.T.Errorf("%s was ended and has the same pid %d", r, before[r])
		}
	}
	s.DeletePods(name)
	return Milliseconds(s.StartTime(name)).String()
}

// HoldDown kills a service and every process that is started in its place, until release is called.
func (s *Scene) HoldDown(r role.Role) (release func()) {
	s.T.Helper()
	release, _ = s.hold(r, syscall.SIGKILL)
	return release
}

// HoldStopped stops a service by SIGSTOP, and every process that is started in its place once the supervisor has
// killed it, until release is called. The last one goes on then.
func (s *Scene) HoldStopped(r role.Role) (release func()) {
	s.T.Helper()
	end, last := s.hold(r, syscall.SIGSTOP)
	release = sync.OnceFunc(func() {
		end()
		if err := s.SignalPIDs(syscall.SIGCONT, last()); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.T.Error(err)
		}
	})
	s.T.Cleanup(release)
	return release
}

// hold sends a signal to each process of a service, once, until end is called. After that, last is the last of them.
func (s *Scene) hold(r role.Role, sig syscall.Signal) (end func(), last func() int) {
	s.T.Helper()
	stop, count := make(chan struct{}), 0
	var wg sync.WaitGroup
	held := s.MustPID(s.T, r)
	wg.Go(func() {
		for done := 0; ; {
			if pid := s.PID(r); pid != 0 && pid != done && s.SignalPIDs(sig, pid) == nil {
				count++
				held, done = pid, pid
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	end = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
		s.T.Logf("%d processes of %s got %v", count, r, sig)
	})
	s.T.Cleanup(end)
	return end, func() int { return held }
}
