//go:build long

package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	// poured is what goes through one forwarded connection, each way.
	poured = 100 << 20
	// together go through connections at the same time, so much each way.
	together       = 4
	pouredTogether = 25 << 20
	counted        = 200 // lines of the log that is followed to its end
)

// TestClients is what people do with a node all day, by the real kubectl: terminals, files, logs, and
// forwarded ports under load.
func TestClients(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	talk := scene.ScriptPod("talk", scene.Forever)
	listens, term := scene.ShellContainer("listens", `while read -r line; do echo "heard $line"; done; `+scene.Forever),
		scene.ShellContainer("term",
			"exec sh -i")
	listens.Stdin, term.Stdin, term.TTY = true, true, true
	lives := scene.ShellContainer("lives",
		`if [ -e /lives/one ]; then echo life two; `+scene.Forever+`; fi; touch /lives/one; echo life one; exit 1`)
	lives.VolumeMounts = []corev1.VolumeMount{{Name: "lives", MountPath: "/lives"}}
	talk.Spec.Volumes = []corev1.Volume{{Name: "lives"}}
	talk.Spec.Containers = append(talk.Spec.Containers, listens, term, lives,
		scene.ShellContainer("echoes", "nc -ll -p 9000 -e cat"))
	counts := scene.ScriptPod("counts", fmt.Sprintf("for i in $(seq 1 %d); do echo line $i; usleep 20000; done", counted))
	counts.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.CreatePods(talk)
	s.Wait(scene.Patience, "the second life of a container", func(v record.View) error {
		for _, c := range s.ContainerStatuses(v, "talk") {
			if c.Name == "lives" && c.RestartCount == 1 && c.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("pod talk is %s", scene.Describe(v.Pod(s.Namespace, "talk")))
	})
	s.WaitReady(scene.Patience, "talk")

	logsToTheEnd(s, t, counts)
	for _, websockets := range []string{"true", "false"} { // else SPDY
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
		t.Setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
		terminals(s, t)
		attaches(s, t, "WebSockets "+websockets)
		copies(s, t)
		pours(s, t, "WebSockets "+websockets)
	}
	debugs(s, t)
	proxy := "/api/v1/nodes/" + s.NodeName() + "/proxy"
	for _, ask := range []struct{ path, want string }{
		{"/pods", `"name":"talk"`}, {"/configz", `"kubeletconfig"`}, {"/healthz", "ok"},
		{"/metrics", "kubelet_runtime_operations_total{"},
		{"/metrics/slis", `kubernetes_healthcheck{name="syncloop",type="healthz"} 1`}, // since /healthz was asked
	} {
		s.KubectlPrints(ask.want, "get", "--raw", proxy+ask.path)
	}
}

// logsToTheEnd follows a log until its container has ended, and reads what a container's former life wrote.
func logsToTheEnd(s *scene.Scene, t *testing.T, counts *corev1.Pod) {
	t.Helper()
	s.KubectlPrints("life one\n", "logs", "talk", "-c", "lives", "--previous")
	s.KubectlPrints("life two\n", "logs", "talk", "-c", "lives")
	s.CreatePods(counts)
	s.Wait(scene.Patience, "the begin of a log", func(v record.View) error {
		if p := v.Pod(s.Namespace, "counts"); p == nil || p.Status.Phase != corev1.PodRunning {
			return errors.New("it does not run")
		}
		return nil
	})
	var want strings.Builder
	for i := range counted {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	out, problems, err := s.RunKubectl(nil, "logs", "-f", "counts")
	if err != nil || out != want.String() {
		t.Errorf("logs -f to the container's end: %v, %q, %d of %d lines", err, problems, strings.Count(out, "\n"),
			counted)
	}
}

// terminal is a client that has one.
type terminal struct {
	*os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	output bytes.Buffer
	ended  chan struct{}
	err    error
}

// newTerminal starts kubectl on a terminal of this size.
func newTerminal(s *scene.Scene, t *testing.T, size pty.Winsize, args ...string) *terminal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scene.Patience)
	x := &terminal{ended: make(chan struct{})}
	x.cmd = exec.CommandContext(ctx, s.Kubectl(),
		append([]string{"--kubeconfig=" + s.Kubeconfig(), "--namespace=" + s.Namespace}, args...)...)
	var err error
	if x.File, err = pty.StartWithSize(x.cmd, &size); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(x.ended)
		piece := make([]byte, 4096)
		for {
			n, err := x.Read(piece)
			x.mu.Lock()
			x.output.Write(piece[:n])
			x.mu.Unlock()
			if err != nil {
				break // a terminal returns EIO when its programs have ended
			}
		}
		x.err = x.cmd.Wait()
	}()
	t.Cleanup(func() { cancel(); <-x.ended; x.Close() })
	return x
}

func (x *terminal) shows() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.output.String()
}

// until waits for what the terminal shows.
func (x *terminal) until(t *testing.T, want string) {
	t.Helper()
	scene.Await(t, time.Minute, "the terminal to show "+want, func() error {
		if shown := x.shows(); !strings.Contains(shown, want) {
			return fmt.Errorf("it shows %q", shown)
		}
		return nil
	})
}

// terminals: a program sees the size of the client's terminal, now and after a change, and its keys.
func terminals(s *scene.Scene, t *testing.T) {
	t.Helper()
	x := newTerminal(s, t, pty.Winsize{Rows: 33, Cols: 101}, "exec", "-it", "talk", "-c", "main", "--", "sh", "-c",
		"while :; do stty size; sleep 0.2; done")
	x.until(t, "33 101")
	if err := pty.Setsize(x.File, &pty.Winsize{Rows: 44, Cols: 111}); err != nil {
		t.Fatal(err)
	}
	x.until(t, "44 111")
	if _, err := x.WriteString("\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	select {
	case <-x.ended:
	case <-time.After(time.Minute):
		t.Fatal("Ctrl-C did not end the program")
	}
	var exit *exec.ExitError
	if !errors.As(x.err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("the client of a program that Ctrl-C ended says %v, want exit code 130", x.err)
	}
}

// attaches talks to main processes: one that reads lines, and a shell on a terminal.
func attaches(s *scene.Scene, t *testing.T, how string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scene.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Kubectl(), "--kubeconfig="+s.Kubeconfig(), "--namespace="+s.Namespace, "attach",
		"-i",
		"talk", "-c", "listens")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stdin, how+"\n"); err != nil {
		t.Error(err)
	}
	heard := false
	for lines := bufio.NewScanner(stdout); !heard && lines.Scan(); {
		heard = lines.Text() == "heard "+how
	}
	if !heard {
		t.Errorf("attach, %s: the process's answer did not come", how)
	}
	cancel()
	_ = cmd.Wait() // it was ended while the process goes on

	x := newTerminal(s, t, pty.Winsize{Rows: 21, Cols: 77}, "attach", "-it", "talk", "-c", "term")
	if _, err := x.WriteString("echo $((6 * 7)) is said\n"); err != nil {
		t.Fatal(err)
	}
	x.until(t, "42 is said")
	if err := pty.Setsize(x.File, &pty.Winsize{Rows: 22, Cols: 78}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteString(
		"while [ \"$(stty size)\" != '22 78' ]; do sleep 0.1; done; echo the size is $(stty size)\n"); err != nil {
		t.Fatal(err)
	}
	x.until(t, "the size is 22 78")
}

// copies takes a folder of files into a container and out of it again.
func copies(s *scene.Scene, t *testing.T) {
	t.Helper()
	there, back := t.TempDir(), filepath.Join(t.TempDir(), "back")
	random := rand.NewChaCha8([32]byte{1})
	for i := range 12 {
		path := filepath.Join(there, fmt.Sprintf("folder-%d", i%3), fmt.Sprintf("file %d", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		data := make([]byte, i*100_003)
		_, _ = random.Read(data)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.KubectlPrints("", "exec", "talk", "-c", "main", "--", "rm", "-rf", "/tmp/copied")
	s.KubectlPrints("", "cp", there, s.Namespace+"/talk:/tmp/copied", "-c", "main")
	s.KubectlPrints("", "cp", s.Namespace+"/talk:/tmp/copied", back, "-c", "main")
	if diff := cmp.Diff(sums(t, there), sums(t, back)); diff != "" {
		t.Errorf("what cp brought back:\n%s", diff)
	}
}

// sums are the digests of a folder's files.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		all[path] = fmt.Sprintf("%d bytes, %x", len(data), sha256.Sum256(data))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

// debugs looks into a container from an ephemeral one beside it.
func debugs(s *scene.Scene, t *testing.T) {
	t.Helper()
	stdin, keys, err := os.Pipe() // an input that had ended would end the client too
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer keys.Close()
	// It answers when it is asked, and so not before the client is attached and hears it.
	if _, err := io.WriteString(keys, "look\n"); err != nil {
		t.Fatal(err)
	}
	out, problems, err := s.RunKubectl(stdin, "debug", "-i", "talk", "--image="+rig.BusyboxImage, "--container=look",
		"--target=main", "--",
		"sh", "-c", `read -r line; ps | grep -q '[t]rap' && echo it sees its neighbour`)
	if err != nil || !strings.Contains(out, "it sees its neighbour") {
		t.Errorf("debug: %v, %q, %q", err, out, problems)
	}
	s.KubectlPrints("it sees its neighbour", "logs", "talk", "-c", "look")
}

// pours sends random bytes through a forwarded port to a server that sends them back, first on one
// connection, then on several at the same time, and compares the digests. None of it passes through podsync.
func pours(s *scene.Scene, t *testing.T, how string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*scene.Patience)
	defer cancel()
	address, end := s.PortForward(ctx, t, "talk", 9000)

	podsync, nodeapi := s.MustPID(t, role.Podsync), s.MustPID(t, role.NodeAPI)
	before := map[int]int64{podsync: passed(s, t, podsync), nodeapi: passed(s, t, nodeapi)}
	began := time.Now()
	if err := pour(address, poured, 0); err != nil {
		t.Errorf("port-forward, %s, %d bytes each way: %v", how, poured, err)
	}
	alone := time.Since(began)
	began = time.Now()
	results := make(chan error, together)
	for i := range together {
		go func() { results <- pour(address, pouredTogether, byte(i+1)) }()
	}
	for range together {
		if err := <-results; err != nil {
			t.Errorf("port-forward, %s, %d at the same time, %d bytes each way: %v", how, together, pouredTogether, err)
		}
	}
	atOnce := time.Since(began)
	total := int64(2 * (poured + together*pouredTogether))
	by := map[int]int64{
		podsync: passed(s, t, podsync) - before[podsync],
		nodeapi: passed(s, t, nodeapi) - before[nodeapi],
	}
	t.Logf("port-forward, %s: %d MiB each way in %s, then %d × %d MiB each way at the same time in %s; nodeapi read and "+
		"wrote %d MiB, podsync %d MiB",
		how, poured>>20, scene.Milliseconds(alone), together, pouredTogether>>20, scene.Milliseconds(atOnce), by[nodeapi]>>20,
		by[podsync]>>20)
	if by[nodeapi] < 2*total { // it reads and writes each
		t.Errorf("of %d bytes nodeapi read and wrote %d: they went another way, so this proves nothing", total,
			by[nodeapi])
	}
	if by[podsync] > total/20 {
		t.Errorf("of %d bytes podsync read and wrote %d meanwhile", total, by[podsync])
	}
	cancel()
	if text := end(); text != "" {
		t.Errorf("port-forward, %s: %s", how, text)
	}
}

// passed is what a process has read and written.
func passed(s *scene.Scene, t *testing.T, pid int) int64 {
	t.Helper()
	n, err := machine.Passed(pid)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pour sends so many random bytes, and wants the same back.
func pour(address string, size int64, seed byte) error {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * scene.Patience)); err != nil {
		return err
	}
	sent, got := sha256.New(), sha256.New()
	wrote := make(chan error, 1)
	go func() {
		_, err := io.CopyN(conn, io.TeeReader(rand.NewChaCha8([32]byte{seed}), sent), size)
		wrote <- err
	}()
	n, err := io.CopyN(got, conn, size)
	if err != nil {
		err = fmt.Errorf("%d bytes came back: %w", n, err)
		_ = conn.Close() // who writes ends too
	}
	if err := errors.Join(err, <-wrote); err != nil {
		return err
	}
	if a, b := sent.Sum(nil), got.Sum(nil); !bytes.Equal(a, b) {
		return fmt.Errorf("sent bytes of digest %x, and got %x", a, b)
	}
	return nil
}
