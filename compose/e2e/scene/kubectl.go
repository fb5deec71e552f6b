package scene

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// RunKubectl runs the real client to its end.
func (s *Scene) RunKubectl(stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(s.T.Context(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Node.Kubectl(),
		append([]string{"--kubeconfig=" + s.Node.Kubeconfig(), "--namespace=" + s.Namespace}, args...)...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &problems
	err = cmd.Run()
	return out.String(), problems.String(), err
}

// KubectlPrints runs the client, which must succeed and say so much.
func (s *Scene) KubectlPrints(want string, args ...string) {
	s.T.Helper()
	if out, problems, err := s.RunKubectl(nil, args...); err != nil || !strings.Contains(out, want) {
		s.T.Errorf("kubectl %s: %v, %.500q, %q; want %q", strings.Join(args, " "), err, out, problems, want)
	}
}

// KubectlComesToPrint runs the client until it says so much.
func (s *Scene) KubectlComesToPrint(want string, args ...string) {
	s.T.Helper()
	Await(s.T, Patience, "kubectl "+strings.Join(args, " "), func() error {
		out, problems, err := s.RunKubectl(nil, args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("%.500q, want %q", out, want)
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, problems)
		}
		return nil
	})
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// PortForward runs kubectl port-forward until the context ends, on a port that kubectl chooses. The function that it
// returns waits for kubectl's end, and returns what it complained about.
func (s *Scene) PortForward(ctx context.Context, t *testing.T, pod string,
	port int) (address string, end func() string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, s.Kubectl(), "--kubeconfig="+s.Kubeconfig(), "--namespace="+s.Namespace,
		"port-forward",
		"--address=127.0.0.1", pod, fmt.Sprintf(":%d", port))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	found := forwarding.FindStringSubmatch(first)
	if err != nil || found == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("port-forward says %q: %v %s", first, err, problems.String())
	}
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, lines) }()
	return found[1], func() string {
		<-drained
		_ = cmd.Wait() // the context's end is its end
		return problems.String()
	}
}
