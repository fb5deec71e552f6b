package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/compose/rig"
)

// unitPatience is how long the agent may take to stop or start.
const unitPatience = time.Minute

// agent is stopped and started. It is an instance's.
type agent interface {
	StopAgent(ctx context.Context) error
	StartAgent(ctx context.Context) error
}

// unit answers the systemctl of specs that restart the kubelet. This machine need not run systemd, so the suite gets a
// systemctl of its own, which passes its arguments on by a pipe and waits for an answer.
type unit struct {
	agent   agent
	running bool
}

// systemctl is the program. One call is answered at a time.
const systemctl = `#!/bin/sh
exec 9>%[1]s/lock
flock 9
echo "$*" >%[1]s/request
read -r code text <%[1]s/answer
test -z "$text" || echo "$text"
exit "$code"
`

// sudo is for a root that needs none, and keeps the search path.
const sudo = "#!/bin/sh\nexec \"$@\"\n"

// serveUnit puts the programs into a new folder, which is to be first in the suite's search path, and answers them
// until end is called.
func serveUnit(ctx context.Context, a agent, path string) (end func(), err error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the suite's systemctl: %w", err)
	}
	for name, text := range map[string]string{"systemctl": fmt.Sprintf(systemctl, path), "sudo": sudo} {
		if err := os.WriteFile(filepath.Join(path, name), []byte(text), 0o755); err != nil {
			return nil, fmt.Errorf("make the suite's systemctl: %w", err)
		}
	}
	pipes := map[string]*os.File{}
	closeAll := func() {
		for _, f := range pipes {
			_ = f.Close()
		}
	}
	for _, name := range []string{"request", "answer"} {
		file := filepath.Join(path, name)
		if err := unix.Mkfifo(file, 0o600); err != nil {
			closeAll()
			return nil, fmt.Errorf("make the pipe %s: %w", file, err)
		}
		// Open for both, so that neither side waits for the other to open it.
		if pipes[name], err = os.OpenFile(file, os.O_RDWR, 0); err != nil {
			closeAll()
			return nil, fmt.Errorf("make the suite's systemctl: %w", err)
		}
	}
	u := &unit{agent: a, running: true}
	var server sync.WaitGroup
	server.Go(func() {
		lines := bufio.NewScanner(pipes["request"])
		for lines.Scan() {
			code, text := u.answer(ctx, strings.Fields(lines.Text()))
			if _, err := fmt.Fprintf(pipes["answer"], "%d %s\n", code, text); err != nil {
				return
			}
		}
	})
	return func() { closeAll(); server.Wait() }, nil
}

// answer does what a call asks for, and returns its exit code and its output.
func (u *unit) answer(ctx context.Context, args []string) (code int, text string) {
	ctx, cancel := context.WithTimeout(ctx, unitPatience)
	defer cancel()
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	var err error
	switch verb {
	case "list-units":
		if u.running || !strings.Contains(strings.Join(args, " "), "--state=running") {
			return 0, rig.SuiteUnit + ".service loaded active running the agent of the rig"
		}
		return 0, ""
	case "reset-failed":
	case "stop", "kill":
		err = u.stop(ctx)
	case "start":
		err = u.start(ctx)
	case "restart":
		err = errors.Join(u.stop(ctx), u.start(ctx))
	default:
		err = fmt.Errorf("systemctl %s is not known here", strings.Join(args, " "))
	}
	if err != nil {
		return 1, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return 0, ""
}

func (u *unit) stop(ctx context.Context) error {
	if !u.running {
		return nil
	}
	u.running = false
	return u.agent.StopAgent(ctx)
}

func (u *unit) start(ctx context.Context) error {
	if u.running {
		return nil
	}
	err := u.agent.StartAgent(ctx)
	u.running = err == nil
	return err
}
