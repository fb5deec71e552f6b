package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/internal/conformance"
)

// conformanceOptions are the flags of rig conformance.
type conformanceOptions struct {
	family, agent, focus, labels, output string
	microlet, name                       string
	procs                                int
	timeout                              time.Duration
	again, record, machine               bool
	// given reports whether the command line has a flag.
	given func(flag string) bool
}

func newConformance(out, progress io.Writer) *cobra.Command {
	var o conformanceOptions
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Run upstream's end-to-end suites against the kubelet and microlet",
		Long: `Run a family of upstream's specs against an instance with the real kubelet, one
with microlet, or one after the other, and compare the results with the list of
specs that the kubelet is known to pass. A family is a file of
compose/conformance/families: a suite, which of its specs, and what these need. The
suite e2e looks at the cluster through its API server; node looks at the node from
inside, and takes the places that a kubelet of this machine would have while it runs.
With --machine the node has a machine of its own, with systemd and cgroup v2, and the
suite of the node runs there.

The results go to a folder: for each agent junit.xml, report.json, output.log and
the agent's log, and table.md with both agents side by side; what one agent
did before stays there for the table. The command fails if a spec of the
kubelet's list is missing, skipped or fails with an agent that ran, or if
microlet does not pass a spec that the kubelet passed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			o.given = cmd.Flags().Changed
			return runConformance(ctx, o, out, progress)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.family, "family", conformance.E2E.Name, "the family of specs; an unknown one lists all")
	flags.StringVar(&o.agent, "agent", "both", "kubelet, microlet or both")
	flags.StringVar(&o.focus, "focus", "",
		"in place of the family's: only specs whose full name this regular expression matches")
	flags.StringVar(&o.labels, "labels", "",
		"in place of the family's: only specs whose labels this filter of ginkgo matches")
	flags.IntVar(&o.procs, "procs", 0,
		"specs that run in parallel (default the family's, 6 with a machine of the node's own, or 16)")
	flags.DurationVar(&o.timeout, "timeout", 0,
		"stop the suite of one agent after this time (default 1h30m, or 3h where specs run one by one)")
	flags.StringVar(&o.output, "output", "conformance-results",
		"the folder of the results, which are in <family> or <family>-machine below it")
	flags.StringVar(&o.name, "name", "",
		"the beginning of the instances' names, of at most 11 letters; another one lets two commands run side by side")
	flags.BoolVar(&o.machine, "machine", false,
		"give the node a machine of its own, with systemd and cgroup v2; its kernel is built once, for some 20 minutes")
	flags.StringVar(&o.microlet, "microlet", "", "the microlet executable (default bin/microlet of the repository)")
	flags.BoolVar(&o.again, "again", true,
		"run a second time, with less in parallel, what failed (default false where specs run one by one)")
	flags.BoolVar(&o.record, "record", false,
		"write the kubelet's list and the page docs/conformance.md from these results; for all of the family e2e or node")
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
	agents, err := o.agents()
	if err != nil {
		return err
	}
	families, err := conformance.FindFamilies(o.family)
	if err != nil {
		return err
	}
	if o.given("focus") {
		families = families[:1] // the others have specs of their own
	}
	comparisons := make([]comparison, len(families))
	for i, f := range families {
		if comparisons[i], err = o.compare(f); err != nil {
			return fmt.Errorf("family %s: %w", f.Name, err)
		}
		comparisons[i].out, comparisons[i].progress = out, progress
	}
	var problems []error
	for _, c := range comparisons {
		if err := c.do(ctx, agents); err != nil {
			problems = append(problems, fmt.Errorf("family %s: %w", c.family.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(problems...)
}

// compare prepares a family with what the command line says in place of it.
func (o conformanceOptions) compare(f conformance.Family) (comparison, error) {
	c := comparison{microlet: o.microlet, name: o.name, record: o.record, timeout: f.Timeout(), again: !f.OneByOne}
	if o.given("focus") {
		f.Focus = o.focus
	}
	if o.given("labels") {
		f.Labels = o.labels
	}
	if o.given("again") {
		c.again = o.again
	}
	if o.given("timeout") {
		c.timeout = o.timeout
	}
	folder := f.Name
	if o.machine && !f.Machine {
		folder += "-machine"
	}
	if o.given("machine") {
		f.Machine = o.machine
	}
	if c.procs = f.Parallel(); o.given("procs") {
		c.procs = o.procs
	}
	c.family = f
	var err error
	if c.suite, err = f.FindSuite(); err != nil {
		return c, err
	}
	if f.Focus != "" {
		if c.focus, err = regexp.Compile(f.Focus); err != nil {
			return c, fmt.Errorf("focus %q: %w", f.Focus, err)
		}
	}
	if c.procs < 1 {
		return c, fmt.Errorf("procs %d: use 1 or more", c.procs)
	}
	if err := c.checkRecord(); err != nil {
		return c, err
	}
	if c.name == "" {
		c.name = c.suite.Instance
	}
	if c.output, err = filepath.Abs(filepath.Join(o.output, folder)); err != nil {
		return c, fmt.Errorf("folder of the results: %w", err)
	}
	c.files, err = conformance.Locate(c.suite)
	return c, err
}

// checkRecord reports why what is recorded would not be what the lists and the page are of.
func (c *comparison) checkRecord() error {
	f := c.family
	switch {
	case !c.record:
		return nil
	case f.Name != f.Suite || f.Focus != "" || f.Labels != conformance.DefaultLabels:
		return errors.New("--record needs all of the family e2e or node: leave out --focus and --labels")
	case f.Machine:
		return errors.New("--record writes what the kubelet passes on this machine: leave out --machine")
	}
	return nil
}

// comparison is one family with the kubelet and with microlet.
type comparison struct {
	family         conformance.Family
	suite          conformance.Suite
	focus          *regexp.Regexp
	procs          int
	timeout        time.Duration
	again, record  bool
	microlet, name string
	output         string
	files          conformance.Files
	out, progress  io.Writer
}

func (c *comparison) dir(agent string) string { return filepath.Join(c.output, agent) }

// do runs the family with each agent, and judges them.
func (c *comparison) do(ctx context.Context, agents []rig.Agent) error {
	for _, agent := range agents {
		if err := c.run(ctx, agent); err != nil {
			return err
		}
	}
	return c.conclude(agents)
}

// run runs the suite against a new instance with the agent.
func (c *comparison) run(ctx context.Context, agent rig.Agent) (err error) {
	with := []string{c.suite.Group}
	if c.family.Storage {
		with = append(with, rig.GroupCSI, rig.GroupCSIMock)
	}
	args := c.family.AgentArgs
	if agent == rig.AgentMicrolet {
		args = slices.Concat(args, c.family.MicroletArgs)
	}
	i, err := rig.Up(ctx, rig.Options{
		Name: c.name + "-" + string(agent), Agent: agent, Microlet: c.microlet, AgentArgs: args,
		With: with, DefaultPlaces: c.suite.OnNode, Machine: c.suite.OnMachine,
		Standalone: c.family.Standalone, Open: c.family.Open, Out: c.progress,
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
		Labels:   c.family.Labels,
		Focus:    c.focus,
		Procs:    c.procs,
		Timeout:  c.timeout,
		Alone:    c.family.Standalone,
		Storage:  c.family.Storage,
		Dir:      c.dir(string(agent)),
		Again:    c.again,
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
	if err := os.WriteFile(filepath.Join(c.output, "table.md"), []byte(table), 0o644); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	both := len(ran) == 2
	if c.record {
		if err := c.writeLists(ran, kubelet, microlet); err != nil {
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
		j := conformance.Judge(string(agent), *results, known, c.focus, c.family.Labels, compare)
		complaints += len(j.Complaints)
		_, _ = fmt.Fprintf(c.out,
			"%s: %d passed (%d of them at the second try), %d failed, %d skipped; %d of %d specs of the kubelet's list passed\n",
			agent, j.Passed, j.Second, j.Failed, j.Skipped, j.Met, j.Expected)
		for _, complaint := range j.Complaints {
			_, _ = fmt.Fprintf(c.out, "  %s\n", complaint)
		}
	}
	_, _ = fmt.Fprintf(c.out, "Both agents beside each other: %s\nJUnit, output and agents' logs: %s\n",
		filepath.Join(c.output, "table.md"), c.output)
	if complaints > 0 {
		return fmt.Errorf("%d complaints, see above", complaints)
	}
	return nil
}

// writeLists writes the committed files from the results of this call.
func (c *comparison) writeLists(ran []rig.Agent, kubelet, microlet *conformance.Results) error {
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
