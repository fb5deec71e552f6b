package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/microlet/microlet/compose/rig"
)

// DefaultLabels select what a node must be able to do, without what is slow,
// needs the node for itself, breaks it, or is known to be unsteady upstream.
const DefaultLabels = "NodeConformance && !Slow && !Serial && !Disruptive && !Flaky"

// Run says what is run against an instance.
type Run struct {
	Suite    Suite
	Instance *rig.Instance
	Labels   string         // a label filter of ginkgo; "" selects all
	Focus    *regexp.Regexp // over full names; nil selects all
	Procs    int            // specs in parallel
	Timeout  time.Duration  // of the whole suite
	Alone    bool           // the agent has no API server
	Storage  bool           // add the specs of a CSI driver, with the rig's own
	Dir      string         // where reports and logs go; recreated
	Again    bool           // run what failed a second time
	Known    Reasons        // failures that are no surprise, by name: they are not run a second time
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
	p, err := r.placeOf()
	if err != nil {
		return Results{}, err
	}
	flags, end, err := r.connect(ctx, p)
	if err != nil {
		return Results{}, err
	}
	defer end()
	for _, name := range []string{rig.Ginkgo, r.Suite.Program} {
		if err := p.program(ctx, r.Instance.Binary(name), name); err != nil {
			return Results{}, fmt.Errorf("run the suite: %w", err)
		}
	}
	results, err := r.once(ctx, p, flags, "", r.Focus, r.Procs)
	if err != nil {
		return results, err
	}
	failures := slices.DeleteFunc(results.Failures(), func(name string) bool { return r.Known[name] != "" })
	if !r.Again || len(failures) == 0 {
		return results, nil
	}
	_, _ = fmt.Fprintf(r.Out, "conformance: %s: %d specs failed, running them once more, %d at a time\n",
		r.Instance.Agent(), len(failures), min(secondProcs, r.Procs))
	second, err := r.once(ctx, p, flags, "-second", r.Suite.Exactly(failures), min(secondProcs, r.Procs))
	if err != nil {
		return results, err
	}
	results.Merge(second)
	results.Broken = append(results.Broken, second.Broken...)
	return results, nil
}

// connect returns the flags by which the suite finds the cluster and the node,
// and a function that ends what it needs meanwhile.
func (r Run) connect(ctx context.Context, p place) (flags []string, end func(), err error) {
	if r.Suite.OnNode {
		return r.connectNode(ctx, p)
	}
	flags = []string{
		"--provider=skeleton", "--kubeconfig=" + r.Instance.Kubeconfig(), "--kubectl-path=" + r.Instance.Kubectl(),
		"--num-nodes=1", "--node-schedulable-timeout=30s",
		// There is no SSH to the node, by which it would fetch logs.
		"--disable-log-dump=true",
		"--kubelet-root-dir=" + r.Instance.RootDir(),
	}
	if r.Storage {
		driver, err := r.startDriver(ctx, p)
		if err != nil {
			return nil, nil, err
		}
		flags = append(flags, "--storage.testdriver="+driver)
	}
	return flags, func() {}, nil
}

// args is ginkgo's command line, for the folder in which the suite runs.
func (r Run) args(dir string, flags []string, suffix string, focus *regexp.Regexp, procs int) []string {
	args := []string{
		path.Join(dir, rig.Ginkgo), fmt.Sprintf("--procs=%d", procs), "--no-color", "--silence-skips",
		"--timeout=" + r.Timeout.String(),
		// Its default needs a file for all that specs print to stdout themselves.
		"--output-interceptor-mode=none",
		"--label-filter=" + r.Labels,
		"--output-dir=" + dir, "--json-report=" + reportFile(suffix), "--junit-report=" + junitFile(suffix),
	}
	if focus != nil {
		args = append(args, "--focus="+focus.String())
	}
	if r.Suite.skipFiles != "" {
		args = append(args, "--skip-file="+r.Suite.skipFiles)
	}
	return append(append(args, path.Join(dir, r.Suite.Program), "--"), flags...)
}

func reportFile(suffix string) string { return "report" + suffix + ".json" }
func junitFile(suffix string) string  { return "junit" + suffix + ".xml" }

// once runs the suite.
func (r Run) once(ctx context.Context, p place, flags []string, suffix string, focus *regexp.Regexp,
	procs int) (_ Results, err error) {
	log, err := os.Create(filepath.Join(r.Dir, "output"+suffix+".log"))
	if err != nil {
		return Results{}, fmt.Errorf("run the suite: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	stop := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() { r.report(log.Name(), stop) })
	code, err := p.run(ctx, r.args(p.dir(), flags, suffix, focus, procs), log)
	close(stop)
	reporter.Wait()
	if ctx.Err() != nil {
		return Results{}, fmt.Errorf("run the suite: %w", ctx.Err())
	}
	if err != nil {
		return Results{}, fmt.Errorf("run the suite (see %s): %w", log.Name(), err)
	}
	if err := p.collect(ctx, r.Dir, reportFile(suffix), junitFile(suffix)); err != nil {
		return Results{}, fmt.Errorf("run the suite (see %s): %w", log.Name(), err)
	}
	results, err := ReadReport(filepath.Join(r.Dir, reportFile(suffix)))
	if err != nil {
		return Results{}, fmt.Errorf("run the suite (it ended with exit status %d, see %s): %w", code, log.Name(), err)
	}
	if code != 0 && len(results.Failures()) == 0 {
		results.Broken = append(results.Broken,
			fmt.Sprintf("the suite ended with exit status %d, see %s", code, log.Name()))
	}
	return results, nil
}

// report prints every half a minute how far the suite is.
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
			_, _ = fmt.Fprintf(r.Out, "conformance: %s: %s, %s\n", r.Instance.Agent(),
				time.Since(begin).Round(time.Second), progress(text))
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
