package cached

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is one step of a make.
type Command struct {
	Args []string
	Dir  string
	Env  []string // added to the caller's environment
	// Nice is how far the command stands back behind others, 0 to 19.
	Nice int
}

// Run runs a command that may take minutes. Every ten seconds say gets how many lines it has written and
// the last of them; an error has the last twenty. It kills the command and all that it started when the
// context ends.
func Run(ctx context.Context, c Command, say func(format string, args ...any)) error {
	args := c.Args
	if c.Nice > 0 {
		args = append([]string{"nice", fmt.Sprintf("-n%d", c.Nice)}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w

	const most = 20
	var mu sync.Mutex
	var tail []string
	count := 0
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			mu.Lock()
			count++
			tail = append(tail, lines.Text())
			tail = tail[max(0, len(tail)-most):]
			mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, r) // a line that is too long
	}()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Run()
		_ = w.Close()
		ended <- err
	}()

	begin := time.Now()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			mu.Lock()
			n, last := count, ""
			if len(tail) > 0 {
				last = tail[len(tail)-1]
			}
			mu.Unlock()
			say("%s: %s, %d lines, last: %s", c.Args[0], time.Since(begin).Round(time.Second), n,
				strings.TrimSpace(last))
		case err := <-ended:
			<-read
			if err != nil && ctx.Err() != nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w:\n%s", strings.Join(c.Args, " "), err, strings.Join(tail, "\n"))
			}
			return nil
		}
	}
}
