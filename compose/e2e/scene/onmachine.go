package scene

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/microlet/microlet/compose/rig/machine"
	"github.com/microlet/microlet/proto/role"
)

// RunOnMachine runs a command, which has to succeed, in the node's own machine, and returns what it writes.
func (n *Node) RunOnMachine(ctx context.Context, args ...string) (string, error) {
	m, err := n.Machine()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	r, err := m.Run(ctx, machine.Command{Args: args})
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("%s has ended with %d: %s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return string(r.Stdout), err
}

// LinesOnMachine is RunOnMachine for a command that writes lines.
func (n *Node) LinesOnMachine(args ...string) ([]string, error) {
	out, err := n.RunOnMachine(context.Background(), args...)
	return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }), err
}

// NumberOnMachine is RunOnMachine for a command that writes a number.
func (n *Node) NumberOnMachine(args ...string) (int, error) {
	out, err := n.RunOnMachine(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// WriteFile writes a file of the node, and the folders above it.
func (n *Node) WriteFile(path string, text []byte) error {
	if !n.OnMachine() {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o644)
	}
	m, err := n.Machine()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return m.Write(ctx, path, text, 0o644)
}

// MkdirAll makes a folder of the node.
func (n *Node) MkdirAll(path string) error {
	if !n.OnMachine() {
		return os.MkdirAll(path, 0o755)
	}
	_, err := n.RunOnMachine(context.Background(), "mkdir", "-p", path)
	return err
}

// answersThere is answers in the node's own machine, where a transient unit answers.
func (s *Scene) answersThere() int32 {
	s.T.Helper()
	const unit, port = "answers", 18080
	// The request is read to its end: a connection closed before would be reset.
	const script = `while read -r line && [ "$line" != "$(printf '\r')" ]; do :; done
printf 'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\nyes\n'`
	if err := s.WriteFile("/usr/local/bin/answer", []byte("#!/bin/sh\n"+script+"\n")); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		if _, err := s.RunOnMachine(context.Background(), "systemctl", "stop", unit); err != nil {
			s.T.Error(err)
		}
	})
	listen := fmt.Sprintf("TCP-LISTEN:%d,bind=127.0.0.1,reuseaddr,fork", port)
	if _, err := s.RunOnMachine(s.T.Context(), "systemd-run", "--quiet", "--collect", "--unit="+unit, "socat", listen,
		"EXEC:sh /usr/local/bin/answer"); err != nil {
		s.T.Fatal(err)
	}
	return port
}

// ReadFile reads a file of the node.
func (n *Node) ReadFile(path string) ([]byte, error) {
	if !n.OnMachine() {
		return os.ReadFile(path)
	}
	out, err := n.RunOnMachine(context.Background(), "cat", path)
	return []byte(out), err
}

// pidThere is pid in the node's own machine.
func (n *Node) pidThere(up int, r role.Role) int {
	children, err := n.LinesOnMachine("ps", "-o", "pid=,stat=,args=", "--ppid", strconv.Itoa(up))
	if err != nil {
		return 0
	}
	for _, line := range children {
		words := strings.Fields(line)
		if len(words) < 4 || words[1][0] == 'Z' || !holds(words[3:], r) {
			continue
		}
		if pid, err := strconv.Atoi(words[0]); err == nil {
			return pid
		}
	}
	return 0
}

func (n *Node) killThere(sig syscall.Signal, pids ...int) error {
	args := []string{"kill", "-" + strconv.Itoa(int(sig))}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	_, err := n.RunOnMachine(context.Background(), args...)
	return err
}

// bridgePortsThere counts the links at the bridge of the node's pods.
func (n *Node) bridgePortsThere() (int, error) {
	ports, err := n.LinesOnMachine("find", "/sys/class/net/", "-maxdepth", "1", "-name", "veth*")
	return len(ports), err
}

// keepJournal saves the journal of the node's own machine, and what its kernel said.
func (n *Node) keepJournal(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	m, err := n.Machine()
	if err != nil {
		return err
	}
	console := os.WriteFile(filepath.Join(dir, "console.log"), []byte(m.Console(200)), 0o644)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := n.RunOnMachine(ctx, "journalctl", "--no-pager", "-o", "short-precise")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "journal.log"), []byte(out), 0o644); err != nil {
		return err
	}
	return console
}
