package machine

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// shell runs commands in a machine over one SSH connection, and reconnects when the connection is lost.
type shell struct {
	config   *ssh.ClientConfig
	address  string
	patience time.Duration // for a simple answer
	connect  func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	client *ssh.Client
}

func newShell(r record, address string, connect func(context.Context) (net.Conn, error)) (*shell, error) {
	text, err := os.ReadFile(r.Assets.Key)
	if err != nil {
		return nil, fmt.Errorf("read the machine's key: %w", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read the machine's key: %w", err)
	}
	if text, err = os.ReadFile(r.Assets.HostKey); err != nil {
		return nil, fmt.Errorf("read the machine's key: %w", err)
	}
	host, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil, fmt.Errorf("read the machine's key: %w", err)
	}
	return &shell{address: address, patience: r.patience(), connect: connect, config: &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(host),
	}}, nil
}

// open returns a connection that has answered just now.
func (s *shell) open(ctx context.Context) (*ssh.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	// The handshake knows no context.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, s.address, s.config)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	client := ssh.NewClient(c, channels, requests)
	s.client = client
	go func() {
		_ = client.Wait()
		s.drop(client)
	}()
	return client, nil
}

// drop closes the connection, or any if client is nil. Commands that run on it fail.
func (s *shell) drop(client *ssh.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil && (client == nil || client == s.client) {
		_ = s.client.Close()
		s.client = nil
	}
}

// session opens a channel. A connection does not show that its machine is gone until an answer is due.
func (s *shell) session(ctx context.Context) (*ssh.Session, error) {
	for attempt := 0; ; attempt++ {
		client, err := s.open(ctx)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { s.drop(client) })
		session, err := client.NewSession()
		stop()
		if err == nil {
			return session, nil
		}
		s.drop(client)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if attempt > 0 {
			return nil, err
		}
	}
}

// run runs a command and kills it when the context ends.
func (s *shell) run(ctx context.Context, c Command) (Result, error) { return s.do(ctx, c, s.kill) }

// ask runs a command that asks and changes nothing. The connection and the command end with the context, because
// nothing else notices that a machine has gone down meanwhile.
func (s *shell) ask(ctx context.Context, args ...string) (Result, error) {
	return s.do(ctx, Command{Args: args}, func(context.Context, string) { s.drop(nil) })
}

// do runs a command. It has stop end it by its mark when the context ends.
func (s *shell) do(ctx context.Context, c Command, stop func(ctx context.Context, mark string)) (Result, error) {
	if len(c.Args) == 0 {
		return Result{}, errors.New("no command")
	}
	session, err := s.session(ctx)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = session.Close() }()
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = c.Input, &stdout, &stderr
	if c.Output != nil {
		session.Stdout = c.Output
	}
	if c.Input == nil {
		session.Stdin = bytes.NewReader(nil)
	}
	mark := newMark()
	ended := make(chan error, 1)
	go func() { ended <- session.Run(mark + " exec " + quote(c.Args)) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		stop(context.WithoutCancel(ctx), mark)
		_ = session.Close()
		select {
		case <-ended:
		case <-time.After(time.Second):
			s.drop(nil)
			<-ended
		}
		return Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}, ctx.Err()
	}
	r := Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}
	var exit *ssh.ExitError
	if errors.As(err, &exit) {
		r.Code = exit.ExitStatus()
		return r, nil
	}
	return r, err
}

// newMark makes a variable of the environment by which a command and all that it starts are found again.
func newMark() string {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // it never fails
	return "MACHINE_COMMAND=" + hex.EncodeToString(id)
}

// kill kills a command by its mark. sshd would pass a signal on for any user but root.
func (s *shell) kill(ctx context.Context, mark string) {
	// A machine that does not answer gets no more of the caller's time.
	ctx, cancel := context.WithTimeout(ctx, 10*s.patience)
	defer cancel()
	session, err := s.session(ctx)
	if err != nil {
		return
	}
	defer func() { _ = session.Close() }()
	stop := context.AfterFunc(ctx, func() { s.drop(nil) })
	defer stop()
	// Twice: one that was being started was not there the first time.
	const script = `for i in 1 2; do grep -lszx %s /proc/[0-9]*/environ | cut -d/ -f3 | xargs -r kill -KILL; done`
	_ = session.Run(fmt.Sprintf(script, quote([]string{mark})))
}

// quote writes a command line for the shell that sshd calls.
func quote(args []string) string {
	var b strings.Builder
	for i, arg := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		_, _ = io.WriteString(&b, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	return b.String()
}
