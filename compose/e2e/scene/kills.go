package scene

import (
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
	s.WaitHealthy(s.T, Patience)
	before := map[role.Role]int{}
	for _, r := range roles {
		before[r] = s.MustPID(s.T, r)
	}
	s.Signal(s.T, syscall.SIGKILL, roles...)
	s.CreatePods(PausePod(name))
	s.WaitReady(Patience, name)
	s.WaitHealthy(s.T, Patience)
	for _, r := range roles {
		if s.PID(r) == before[r] {
			s.T.Errorf("%s was killed and has the same pid %d", r, before[r])
		}
	}
	s.DeletePods(name)
	return Milliseconds(s.StartTime(name)).String()
}

// HoldDown kills a service and every process that is started in its place, until release is called.
func (s *Scene) HoldDown(r role.Role) (release func()) {
	s.T.Helper()
	stop, killed := make(chan struct{}), 0
	var wg sync.WaitGroup
	s.MustPID(s.T, r)
	wg.Go(func() {
		for {
			if pid := s.PID(r); pid != 0 && s.SignalPIDs(syscall.SIGKILL, pid) == nil {
				killed++
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	release = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
		s.T.Logf("%s was killed %d times", r, killed)
	})
	s.T.Cleanup(release)
	return release
}
