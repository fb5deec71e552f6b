package supervisor

import (
	"errors"
	"fmt"
	"slices"
)

// ErrUnknownProcess is wrapped by the error of a name that nothing supervised has.
var ErrUnknownProcess = errors.New("no such process")

// Restart asks a process to stop, as at the end of the agent, and starts it again at once. The name of a service that
// shares a process is that of its process. One that waits for its next start is started now. Restart returns before the
// process has stopped.
func (s *Supervisor) Restart(name string) error {
	for _, k := range s.keepers {
		if k.spec.Name == name || slices.Contains(k.spec.Services, name) {
			return k.restart()
		}
	}
	return fmt.Errorf("%w as %q", ErrUnknownProcess, name)
}

func (k *keeper) restart() error {
	if k.asked() {
		return fmt.Errorf("%s is stopping, since the agent ends", k.spec.Name)
	}
	switch p := k.snapshot(); p.State {
	case Waiting:
		return fmt.Errorf("%s is not started yet", p.Name)
	case Idle:
		return fmt.Errorf("%s does not run: it starts when something needs it", p.Name)
	case Stuck:
		return fmt.Errorf("%s cannot start: it %s", p.Name, p.Status)
	}
	k.log.Info("restart was asked for")
	k.again.Set()
	return nil
}

// forgetRestart forgets what was asked for before the start that is about to happen.
func (k *keeper) forgetRestart() {
	k.again.Clear()
}
