package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/internal/conformance"
)

// conformanceOptions are the flags of rig conformance.
type conformanceOptions struct {
	suite, agent, focus, labels, output string
	microlet, name                      string
	agentArgs                           []string
	procs                               int
	timeout                             time.Duration
	again, record, machine, standalone  bool
	open, storage                       bool
}

func newConformance(out, progress io.Writer) *cobra.Command {
	var o conformanceOptions
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Run upstream's end-to-end suites against the kubelet and microlet",
		Long: `Run one of upstream's end-to-end suites against an instance with the real kubelet, one
with microlet, or one after the other, and compare the results with the list of
specs that the kubelet is known to pass. The suite e2e looks at the cluster through
its API server; node looks at the node from inside, and takes the places that a
kubelet of this machine would have while it runs. With --machine the node has a
machine of its own, with systemd and cgroup v2, and the suite of the node runs there.

The results go to a folder: for each agent junit.xml, report.json, output.log and
the agent's log, and table.md with both agents side by side; what one agent
did before stays there for the table. The command fails if a spec of the
kubelet's list is missing, skipped or fails with an agent that ran, or if
microlet does not pass a spec that the kubelet passed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return runConformance(ctx, o, out, progress)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.suite, "suite", conformance.E2E.Name, "e2e or node")
	flags.StringVar(&o.agent, "agent", "both", "kubelet, microlet or both")
	flags.StringVar(&o.focus, "focus", "", "only specs whose full name this regular expression matches")
	flags.StringVar(&o.labels, "labels", conformance.DefaultLabels,
		"only specs whose labels this filter of ginkgo matches")
	flags.IntVar(&o.procs, "procs", 16, "specs that run in parallel")
	flags.DurationVar(&o.timeout, "timeout", 90*time.Minute, "stop the suite of one agent after this time")
	flags.StringVar(&o.output, "output", "",
		"the folder of the results (default conformance-results/<suite>, or <suite>-machine)")
	flags.StringVar(&o.name, "name", "",
		"the beginning of the instances' names, of at most 11 letters; another one lets two commands run side by side")
	flags.StringArrayVar(&o.agentArgs, "agent-arg", nil,
		"an argument to add to the agent's command line; may be repeated")
	flags.BoolVar(&o.standalone, "standalone", false,
		"the agent has no API server, for specs of the suite node that want it so; with --machine")
	flags.BoolVar(&o.open, "open", false,
		"everybody may use the agent's HTTPS API, for specs of the suite node that replace its client CA; with --machine")
	flags.BoolVar(&o.storage, "storage", false,
		"add the specs of a CSI driver (External Storage), with the rig's own, and the images of the suite's mock driver; "+
			"for --suite e2e on this machine")
	flags.BoolVar(&o.machine, "machine", false,
		"give the node a machine of its own, with systemd and cgroup v2; its kernel is built once, for some 20 minutes")
	flags.StringVar(&o.microlet, "microlet", "", "the microlet executable (default bin/microlet of the repository)")
	flags.BoolVar(&o.again, "again", true, "run a second time, with less in parallel, what failed")
	flags.BoolVar(&o.record, "record", false,
		"write the kubelet's list and the page docs/conformance.md from these results; only for the default selection")
	return cmd
}

func (o conformanceOptions) agents() ([]rig.Agent, error) {
	switch o.agent {
	case "both":
		return []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet}, nil
	case string(rig.AgentKubelet), string(rig.AgentMicrolet):
		return []rig.Agent{rig.Agent(o.agent)}, nil
	}
	return nil, fmt.Errorf("agent %q: use kubelet, microlet or both", o.agent)
}

func runConformance(ctx context.Context, o conformanceOptions, out, progress io.Writer) error {
	suite, err := conformance.FindSuite(o.suite, o.machine)
	if err != nil {
		return err
	}
	agents, err := o.agents()
	if err != nil {
		return err
	}
	var focus *regexp.Regexp
	if o.focus != "" {
		if focus, err = regexp.Compile(o.focus); err != nil {
			return fmt.Errorf("focus %q: %w", o.focus, err)
		}
	}
	if (o.standalone || o.open) && suite != conformance.NodeOnMachine {
		return errors.New("--standalone and --open are for --suite node --machine")
	}
	if o.storage && suite != conformance.E2E {
		return errors.New("--storage is for --suite e2e, without --machine")
	}
	if o.name == "" {
		o.name = suite.Instance
	}
	if o.procs < 1 {
		return fmt.Errorf("procs %d: use 1 or more", o.procs)
	}
	if o.record && o.machine {
		return errors.New("--record writes what the kubelet passes on this machine: leave out --machine")
	}
	if o.record && (focus != nil || o.labels != conformance.DefaultLabels) {
		return errors.New("--record needs the default selection: leave out --focus and --labels")
	}
	if o.output == "" {
		o.output = filepath.Join("conformance-results", suite.Name)
	}
	if o.output, err = filepath.Abs(o.output); err != nil {
		return fmt.Errorf("folder of the results: %w", err)
	}
	files, err := conformance.Locate(suite)
	if err != nil {
		return err
	}
	c := comparison{o: o, suite: suite, focus: focus, files: files, out: out, progress: progress}
	for _, agent := range agents {
		if err := c.run(ctx, agent); err != nil {
			return err
		}
	}
	return c.conclude(agents)
}

// comparison is one call of the command.
type comparison struct {
	o             conformanceOptions
	suite         conformance.Suite
	focus         *regexp.Regexp
	files         conformance.Files
	out, progress io.Writer
}

func (c *comparison) dir(agent string) string { return filepath.Join(c.o.output, agent) }

// run runs the suite against a new instance with the agent.
func (c *comparison) run(ctx context.Context, agent rig.Agent) (err error) {
	with := []string{c.suite.Group}
	if c.o.storage {
		with = append(with, rig.GroupCSI, rig.GroupCSIMock)
	}
	i, err := rig.Up(ctx, rig.Options{
		Name: c.o.name + "-" + string(agent), Agent: agent, Microlet: c.o.microlet, AgentArgs: c.o.agentArgs,
		With: with, DefaultPlaces: c.suite.OnNode, Machine: c.suite.OnMachine,
		Standalone: c.o.standalone, Open: c.o.open, Out: c.progress,
	})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, i.Down(stop))
	}()
	known, err := c.files.Explained(string(agent))
	if err != nil {
		return err
	}
	run := conformance.Run{
		Suite:    c.suite,
		Known:    known,
		Instance: i,
		Labels:   c.o.labels,
		Focus:    c.focus,
		Procs:    c.o.procs,
		Timeout:  c.o.timeout,
		Alone:    c.o.standalone,
		Storage:  c.o.storage,
		Dir:      c.dir(string(agent)),
		Again:    c.o.again,
		Out:      c.progress,
	}
	results, err := run.Do(ctx)
	if err == nil {
		status, unknown := i.AgentStatus()
		if unknown == nil && status.Starts > 1 {
			results.Broken = append(results.Broken,
				fmt.Sprintf("the agent was started %d times, its last life ended with: %s", status.Starts,
					status.LastExit))
		}
		err = results.Save(run.Dir)
	}
	kept, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(err, i.KeepAgentLog(kept, filepath.Join(run.Dir, "agent.log")))
}

// conclude judges the agents that ran and writes what both did.
func (c *comparison) conclude(ran []rig.Agent) error {
	kubelet, err := conformance.Load(c.dir(conformance.Kubelet))
	if err != nil {
		return err
	}
	microlet, err := conformance.Load(c.dir(conformance.Microlet))
	if err != nil {
		return err
	}
	table := conformance.Table(kubelet, microlet)
	if err := os.WriteFile(filepath.Join(c.o.output, "table.md"), []byte(table), 0o644); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	both := len(ran) == 2
	if c.o.record {
		if err := c.record(ran, kubelet, microlet); err != nil {
			return err
		}
	}
	known, err := c.files.Read()
	if err != nil {
		return err
	}
	var complaints int
	for _, agent := range ran {
		results, compare := kubelet, (*conformance.Results)(nil)
		if agent == rig.AgentMicrolet {
			results = microlet
			if both {
				compare = kubelet
			}
		}
		j := conformance.Judge(string(agent), *results, known, c.focus, c.o.labels, compare)
		complaints += len(j.Complaints)
		_, _ = fmt.Fprintf(c.out,
			"%s: %d passed (%d of them at the second try), %d failed, %d skipped; %d of %d specs of the kubelet's list passed\n",
			agent, j.Passed, j.Second, j.Failed, j.Skipped, j.Met, j.Expected)
		for _, complaint := range j.Complaints {
			_, _ = fmt.Fprintf(c.out, "  %s\n", complaint)
		}
	}
	_, _ = fmt.Fprintf(c.out, "Both agents beside each other: %s\nJUnit, output and agents' logs: %s\n",
		filepath.Join(c.o.output, "table.md"), c.o.output)
	if complaints > 0 {
		return fmt.Errorf("%d complaints, see above", complaints)
	}
	return nil
}

// record writes the committed files from the results of this call.
func (c *comparison) record(ran []rig.Agent, kubelet, microlet *conformance.Results) error {
	for _, agent := range ran {
		var err error
		if agent == rig.AgentKubelet {
			err = c.files.RecordKubelet(*kubelet)
		} else {
			err = c.files.RecordMicrolet(*microlet)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
