package streamload

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// What a load is made of: who follows logs, and who holds sessions.
const (
	writers        = 10                     // pods whose log grows
	lineEvery      = 100 * time.Millisecond // each of them writes one
	Followers      = 150                    // of these logs
	standing       = 50                     // followers that stop reading
	Talkers        = 20                     // sessions that say something each second and want it back
	Silent         = 15                     // sessions in which nothing happens
	standingTalks  = 15                     // sessions in which the client stops reading long before the end
	Streams        = Followers + standing + sessions
	sessions       = Talkers + Silent + standingTalks
	gatheringLimit = 2 * time.Minute
)

// Load is many clients of the node at the same time, as kubectl is one: client-go's streams, through the apiserver.
// Half of the followers that stop reading ask the node itself, so that nothing but the kernel's
// buffers is between them and it.
type Load struct {
	s      *scene.Scene
	config *rest.Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	present atomic.Int64 // clients with a stream that has begun
	Ended   atomic.Int64 // clients that read, with a stream that has ended
	Lines   atomic.Int64 // that followers have read
	Spoken  atomic.Int64 // what sessions have said and got back
	mu      sync.Mutex
	faults  []string
}

// CreatePods creates the pods whose logs and sessions the clients ask for.
func CreatePods(s *scene.Scene) []string {
	s.T.Helper()
	var pods []*corev1.Pod
	names := []string{"talks", "wrote"}
	for i := range writers {
		p := scene.PausePod(fmt.Sprintf("writes-%d", i))
		const hours = 2
		p.Spec.Containers[0].Image = rig.AgnhostImage
		p.Spec.Containers[0].Args = []string{"logs-generator",
			fmt.Sprintf("--log-lines-total=%d", int(hours*time.Hour/lineEvery)),
			fmt.Sprintf("--run-duration=%dh", hours)}
		pods, names = append(pods, p), append(names, p.Name)
	}
	// As much as a log may hold before it is rotated, in long lines: far more than the kernel's buffers hold.
	wrote := scene.ScriptPod("wrote",
		`line=$(head -c 8000 /dev/zero | tr '\0' x); for i in $(seq 1100); do echo $line; done; `+scene.Forever)
	s.CreatePods(append(pods, scene.ScriptPod("talks", scene.Forever), wrote)...)
	s.WaitReady(2*scene.Patience, names...)
	return names
}

// Start starts all clients, and returns when each has its stream.
func Start(s *scene.Scene, t *testing.T) *Load {
	t.Helper()
	config, err := s.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	a := &Load{s: s, config: config}
	a.ctx, a.cancel = context.WithCancel(t.Context())
	t.Cleanup(a.Stop)
	for i := range Followers {
		a.join(func() error { return a.follow(fmt.Sprintf("writes-%d", i%writers)) })
	}
	for i := range standing {
		a.wg.Go(func() { a.stand(i%2 == 0) })
	}
	for i := range sessions {
		switch websocket := i%2 == 0; {
		case i < Talkers:
			a.join(func() error { return a.talk(websocket, time.Second) })
		case i < Talkers+Silent:
			a.join(func() error { return a.talk(websocket, 0) })
		default:
			a.wg.Go(func() { a.flood(websocket) })
		}
	}
	scene.Await(t, gatheringLimit, "all streams", func() error {
		if n := a.present.Load(); n < Streams {
			return fmt.Errorf("%d of %d are there; faults: %v", n, Streams, a.Faults())
		}
		return nil
	})
	return a
}

// join runs a client that reads until its stream ends.
func (a *Load) join(run func() error) {
	a.wg.Go(func() {
		if err := run(); err != nil {
			a.complain("%v", err)
		}
		a.Ended.Add(1)
	})
}

func (a *Load) complain(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, fmt.Sprintf(format, args...))
}

// Faults are what went wrong so far; it forgets them.
func (a *Load) Faults() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.faults
	a.faults = nil
	return all
}

// Stop ends all streams.
func (a *Load) Stop() {
	a.cancel()
	a.wg.Wait()
}

// follow follows a log from its begin: the writer numbers its lines, and none may be missing.
func (a *Load) follow(pod string) error {
	body, err := a.s.API.CoreV1().Pods(a.s.Namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(a.ctx)
	if err != nil {
		return fmt.Errorf("follow %s: %w", pod, err)
	}
	defer body.Close()
	next := 0
	for lines := bufio.NewScanner(body); lines.Scan(); next++ {
		if next == 0 {
			a.present.Add(1)
		}
		a.Lines.Add(1)
		_, text, _ := strings.Cut(lines.Text(), "] ") // behind what klog writes first
		number, _, _ := strings.Cut(text, " ")
		if n, err := strconv.Atoi(number); err != nil || n != next {
			return fmt.Errorf("log of %s: line %d is %q", pod, next, lines.Text())
		}
	}
	return nil
}

// stand asks for a long log and reads one byte of it.
func (a *Load) stand(direct bool) {
	open := func() (io.ReadCloser, error) {
		return a.s.API.CoreV1().Pods(a.s.Namespace).GetLogs("wrote", &corev1.PodLogOptions{Follow: true}).Stream(a.ctx)
	}
	if direct {
		open = a.openAtNode
	}
	body, err := open()
	if err != nil {
		a.complain("follow and stop reading, direct %t: %v", direct, err)
		return
	}
	defer body.Close()
	if _, err := body.Read(make([]byte, 1)); err != nil {
		a.complain("follow and stop reading, direct %t: %v", direct, err)
		return
	}
	a.present.Add(1)
	<-a.ctx.Done()
}

// openAtNode follows the long log over a connection to the node's own port.
func (a *Load) openAtNode() (io.ReadCloser, error) {
	config, err := rest.TLSConfigFor(a.config)
	if err != nil {
		return nil, err
	}
	config.InsecureSkipVerify, config.RootCAs = true, nil // the node signs its certificate itself
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, DisableKeepAlives: true,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, // not HTTP/2, which would read ahead
	}}
	r, err := http.NewRequestWithContext(a.ctx, http.MethodGet,
		"https://"+net.JoinHostPort(a.s.NodeIP(), "10250")+"/containerLogs/"+a.s.Namespace+"/wrote/main?follow=true", nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, errors.New(answer.Status)
	}
	return answer.Body, nil
}

// session runs a command in the pod that talks.
func (a *Load) session(websocket bool, o remotecommand.StreamOptions, command ...string) error {
	u := a.s.API.CoreV1().RESTClient().Post().Resource("pods").Namespace(a.s.Namespace).Name("talks").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "main", Command: command, Stdin: o.Stdin != nil, Stdout: true},
			scheme.ParameterCodec).URL()
	var run remotecommand.Executor
	var err error
	if websocket {
		run, err = remotecommand.NewWebSocketExecutor(a.config, http.MethodGet, u.String())
	} else {
		run, err = remotecommand.NewSPDYExecutor(a.config, http.MethodPost, u)
	}
	if err != nil {
		return err
	}
	return run.StreamWithContext(a.ctx, o)
}

// talk says something, wants it back, and again; with a pause of 0 only once.
func (a *Load) talk(websocket bool, pause time.Duration) error {
	in, say := io.Pipe()
	hear, out := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		heard := bufio.NewReader(hear)
		for i := 0; ; i++ {
			line := fmt.Sprintf("number %d\n", i)
			if _, err := io.WriteString(say, line); err != nil {
				return
			}
			got, err := heard.ReadString('\n')
			if err != nil {
				return
			}
			if got != line {
				a.complain("said %q and heard %q", line, got)
			}
			a.Spoken.Add(1)
			if i == 0 {
				a.present.Add(1)
			}
			var again <-chan time.Time
			if pause > 0 {
				again = time.After(pause)
			}
			select {
			case <-again:
			case <-a.ctx.Done():
				return
			}
		}
	}()
	err := a.session(websocket, remotecommand.StreamOptions{Stdin: in, Stdout: out}, "cat")
	_ = in.Close()
	_ = out.Close()
	if pause > 0 {
		<-done
	}
	if a.ctx.Err() == nil && a.present.Load() < Streams {
		return fmt.Errorf("exec, WebSocket %t: %w", websocket, err)
	}
	return nil // it ended as it was ended
}

// flood lets a command write far more than all buffers on the way hold, and takes the first of it. It does not write
// without end: the apiserver goes on reading from the node, and throws away, when a WebSocket client has gone.
func (a *Load) flood(websocket bool) {
	first := sync.OnceFunc(func() { a.present.Add(1) })
	err := a.session(websocket, remotecommand.StreamOptions{Stdout: writerFunc(func(p []byte) (int, error) {
		first()
		<-a.ctx.Done()
		return len(p), nil
	})}, "head", "-c", "33554432", "/dev/zero")
	if a.ctx.Err() == nil && a.present.Load() < Streams {
		a.complain("exec and stop reading, WebSocket %t: %v", websocket, err)
	}
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
