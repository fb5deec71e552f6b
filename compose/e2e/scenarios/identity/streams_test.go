//go:build long

package identity

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// stream is a kubectl that prints lines until it is ended.
type stream struct {
	args  []string
	lines atomic.Int64
	done  chan struct{}
	err   error
}

// open runs kubectl until the test ends.
func open(t *testing.T, s *scene.Scene, args ...string) *stream {
	t.Helper()
	flags := []string{"--kubeconfig=" + s.Kubeconfig(), "--namespace=" + s.Namespace}
	cmd := exec.CommandContext(t.Context(), s.Kubectl(), append(flags, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &stream{args: args, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			f.lines.Add(1)
		}
		f.err = cmd.Wait()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-f.done })
	return f
}

// flows judges that it has not ended, whatever it says of itself, and that lines still come.
func (f *stream) flows(t *testing.T) {
	t.Helper()
	before := f.lines.Load()
	scene.Await(t, scene.Patience, "a line of kubectl "+strings.Join(f.args, " "), func() error {
		select {
		case <-f.done:
			t.Fatalf("kubectl %v ended after %d lines: %v", f.args, f.lines.Load(),
				errors.Join(f.err, errors.New("before it was asked to end")))
		default:
		}
		if now := f.lines.Load(); now == before {
			return fmt.Errorf("it has %d lines", now)
		}
		return nil
	})
}

// watches are those of the node that ended after a time, as the API server saw them: how many there were, and what
// describes each that ended before the time that it was to last.
func watches(t *testing.T, s *scene.Scene, after time.Time) (all int, cut []string) {
	t.Helper()
	for _, r := range audited(t, s, after) {
		// Who waits for a certificate stops watching when it is there.
		if r.Verb != "watch" || r.User.Username == "" || strings.Contains(r.RequestURI, "/certificatesigningrequests?") {
			continue
		}
		all++
		uri, err := url.Parse(r.RequestURI)
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.Atoi(uri.Query().Get("timeoutSeconds"))
		if err != nil {
			t.Fatalf("%s: %v", r.RequestURI, err)
		}
		const slack = time.Second // of the timer, which begins after the request has
		lasted := r.Ended.Sub(r.Began)
		if lasted+slack < time.Duration(seconds)*time.Second {
			cut = append(cut, fmt.Sprintf("%s: %s %s: %s, code %d", r.Ended.Format(time.StampMilli), r.UserAgent, r.RequestURI,
				scene.Milliseconds(lasted), r.ResponseStatus.Code))
		}
	}
	return all, cut
}

// refusals describe what the API server answered since a time to callers whom it did not know.
func refusals(t *testing.T, s *scene.Scene, after time.Time) (all []string) {
	t.Helper()
	for _, r := range audited(t, s, after) {
		if r.User.Username == "" || r.User.Username == "system:anonymous" {
			all = append(all, fmt.Sprintf("%s: %s %s %s: %d", r.Ended.Format(time.StampMilli), r.UserAgent, r.Verb, r.RequestURI,
				r.ResponseStatus.Code))
		}
	}
	return all
}

func audited(t *testing.T, s *scene.Scene, after time.Time) []rig.AuditedRequest {
	t.Helper()
	all, err := s.AuditedRequests(after)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
