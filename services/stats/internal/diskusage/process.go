package diskusage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// process is a child as the Measurer sees it.
type process interface {
	// ask sends a request. It does not wait for the answer, nor for the child to read: the pipe has room for the one
	// request that may be under way.
	ask(request) error
	// kill ends the child as soon as the kernel lets it end.
	kill()
}

// launcher starts a child. The launcher reports each of its answers, and at last nil when the child has ended.
type launcher func(report func(*answer)) (process, error)

// child is a process of the operating system.
type child struct {
	cmd   *exec.Cmd
	stdin io.Writer
}

// launch starts this binary as a child.
func launch(report func(*answer)) (process, error) {
	if !mayStart.Load() {
		return nil, errors.New("start a child: the program has not called RunChild")
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", // also when the file was replaced by another version
		Args: []string{childName},
		Env:  []string{"GOMAXPROCS=1", "GOGC=50"},
		Dir:  "/",
		// It ends when the service does, even in the middle of a call.
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
		Stderr:      os.Stderr,
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	c := &child{cmd: cmd, stdin: stdin}
	// This ends with the child. Of an abandoned one that is when the kernel lets go of it.
	go func() {
		for answers := lines(stdout); answers.Scan(); {
			a, err := parseAnswer(answers.Bytes())
			if err != nil {
				break
			}
			report(&a)
		}
		c.kill()
		_ = cmd.Wait() // it was killed, or has said on stderr why it ended
		report(nil)
	}()
	return c, nil
}

func (c *child) ask(q request) error {
	line, err := json.Marshal(q)
	if err != nil {
		return err
	}
	_, err = c.stdin.Write(append(line, '\n'))
	return err
}

func (c *child) kill() { _ = c.cmd.Process.Kill() } // it may have ended
