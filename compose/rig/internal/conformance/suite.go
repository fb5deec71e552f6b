package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/microlet/microlet/compose/rig"
)

// DefaultLabels select what a node must be able to do, without what is slow,
// needs the node for itself, breaks it, or is known to be unsteady upstream.
const DefaultLabels = "NodeConformance && !Slow && !Serial && !Disruptive && !Flaky"

// Run says what is run against an instance.
type Run struct {
	Instance *rig.Instance
	Labels   string         // a label filter of ginkgo; "" selects all
	Focus    *regexp.Regexp // over full names; nil selects all
	Procs    int            // specs in parallel
	Timeout  time.Duration  // of the whole suite
	Dir      string         // where reports and logs go; made anew
	Again    bool           // run what failed a second time
	Out      io.Writer      // progress, a line at a time
}

// secondProcs is how many specs are run in parallel the second time.
const secondProcs = 4

// Do runs the suite and returns the results. That specs failed is no error.
func (r Run) Do(ctx context.Context) (Results, error) {
	if err := os.RemoveAll(r.Dir); err != nil {
		return Results{}, fmt.Errorf("run the suite: %w", err)
	}
	if err := os.MkdirAll(r.Dir, 0o755); err != nil {
		return Results{}, fmt.Errorf("run the suite: %w", err)
	}
	results, err := r.once(ctx, "", r.Focus, r.Procs)
	if err != nil {
		return results, err
	}
	failures := results.Failures()
	if !r.Again || len(failures) == 0 {
		return results, nil
	}
	_, _ = fmt.Fprintf(r.Out, "conformance: %s: %d specs failed, running them once more, %d at a time\n", r.Instance.Agent(), len(failures), min(secondProcs, r.Procs))
	second, err := r.once(ctx, "-second", Exactly(failures), min(secondProcs, r.Procs))
	if err != nil {
		return results, err
	}
	results.Merge(second)
	results.Broken = append(results.Broken, second.Broken...)
	return results, nil
}

// Exactly is a focus on the specs of these names and no other.
func Exactly(names []string) *regexp.Regexp {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return regexp.MustCompile(`^` + regexp.QuoteMeta(described("")) + `(?:` + strings.Join(quoted, "|") + `)$`)
}

// described is the text that ginkgo compares with a focus: it puts the suite's
// description before the spec's name.
func described(name string) string { return "Kubernetes e2e suite " + name }

func (r Run) args(suffix string, focus *regexp.Regexp, procs int) []string {
	args := []string{
		fmt.Sprintf("--procs=%d", procs), "--no-color", "--silence-skips", "--timeout=" + r.Timeout.String(),
		// Its default needs a file for all that specs print to stdout themselves.
		"--output-interceptor-mode=none",
		"--label-filter=" + r.Labels,
		"--output-dir=" + r.Dir, "--json-report=report" + suffix + ".json", "--junit-report=junit" + suffix + ".xml",
	}
	if focus != nil {
		args = append(args, "--focus="+focus.String())
	}
	return append(args, r.Instance.Binary(rig.Suite), "--",
		"--provider=skeleton", "--kubeconfig="+r.Instance.Kubeconfig(), "--kubectl-path="+r.Instance.Kubectl(),
		"--num-nodes=1", "--node-schedulable-timeout=30s",
		// There is no SSH to the node, by which it would fetch logs.
		"--disable-log-dump=true",
	)
}

// once runs the suite. Ginkgo gets the interrupt that ends ctx, so that specs
// clean up.
func (r Run) once(ctx context.Context, suffix string, focus *regexp.Regexp, procs int) (_ Results, err error) {
	log, err := os.Create(filepath.Join(r.Dir, "output"+suffix+".log"))
	if err != nil {
		return Results{}, fmt.Errorf("run the suite: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := exec.CommandContext(ctx, r.Instance.Binary(rig.Ginkgo), r.args(suffix, focus, procs)...)
	cmd.Dir = r.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to pass on, once
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return Results{}, fmt.Errorf("run the suite: %w", err)
	}
	stop := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() { r.report(log.Name(), stop) })
	err = cmd.Wait()
	close(stop)
	reporter.Wait()
	if ctx.Err() != nil {
		return Results{}, fmt.Errorf("run the suite: %w", ctx.Err())
	}
	results, readErr := ReadReport(filepath.Join(r.Dir, "report"+suffix+".json"))
	if readErr != nil {
		return Results{}, errors.Join(readErr, fmt.Errorf("run the suite (see %s): %w", log.Name(), err))
	}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || len(results.Failures()) == 0) {
		results.Broken = append(results.Broken, fmt.Sprintf("the suite ended with %v, see %s", err, log.Name()))
	}
	return results, nil
}

// report tells every half a minute how far the suite is.
func (r Run) report(log string, stop <-chan struct{}) {
	begin := time.Now()
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			text, err := os.ReadFile(log)
			if err != nil {
				continue // it is only for the eye
			}
			_, _ = fmt.Fprintf(r.Out, "conformance: %s: %s, %s\n", r.Instance.Agent(), time.Since(begin).Round(time.Second), progress(text))
		}
	}
}

var planned = regexp.MustCompile(`Will run (\d+) of \d+ specs`)

// progress counts in what ginkgo printed so far: a dot a spec, with a word in
// brackets after it if it failed.
func progress(log []byte) string {
	of := ""
	if match := planned.FindSubmatch(log); match != nil {
		of = " of " + string(match[1])
	}
	failed := 0
	for _, word := range []string{"FAILED", "PANICKED", "TIMEDOUT", "INTERRUPTED", "ABORTED"} {
		failed += bytes.Count(log, []byte("• ["+word+"]"))
	}
	return fmt.Sprintf("%d%s specs ended, %d failed", bytes.Count(log, []byte("•")), of, failed)
}
