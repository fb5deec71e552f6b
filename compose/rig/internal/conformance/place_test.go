package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/machine"
)

// local is a machine whose commands run here.
type local struct{ machine.Machine }

func (local) Run(ctx context.Context, c machine.Command) (machine.Result, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Stdin, cmd.Stdout = c.Input, c.Output
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return machine.Result{Code: exit.ExitCode()}, nil
	}
	return machine.Result{}, err
}

func (local) Write(_ context.Context, to string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, mode)
}

func (l local) CopyIn(ctx context.Context, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return l.Write(ctx, to, text, info.Mode())
}

func (l local) CopyOut(ctx context.Context, from, to string) error { return l.CopyIn(ctx, from, to) }

// A suite's program finds itself, its own programs and the agent's configuration in its folder, wherever that is, and
// what it reports comes to this machine.
func TestPlaces(t *testing.T) {
	const suite = `#!/bin/sh
tool
cat kubelet-config
echo wrong >&2
echo '{}' >report.json
exit 3
`
	for name, make := range map[string]func(dir, results string) place{
		"here":  func(_, results string) place { return &here{folder: results} },
		"there": func(dir, _ string) place { return &there{dir, local{}} },
	} {
		t.Run(name, func(t *testing.T) {
			results, program, config := t.TempDir(), filepath.Join(t.TempDir(), "suite"), filepath.Join(t.TempDir(), "c")
			if err := os.WriteFile(program, []byte(suite), 0o755); err != nil {
				t.Fatal(err)
			}
			p := make(t.TempDir(), results)
			ctx := t.Context()
			for _, err := range []error{
				p.program(ctx, program, "suite.test"),
				p.write(ctx, filepath.Join(p.dir(), "bin/tool"), []byte("#!/bin/sh\necho tool of $PWD\n"), 0o755),
				p.write(ctx, config, []byte("maxPods: 7\n"), 0o644),
				p.link(ctx, config, "kubelet-config"),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			code, err := p.run(ctx, []string{filepath.Join(p.dir(), "suite.test")}, &out)
			if want := "tool of " + p.dir() + "\nmaxPods: 7\nwrong\n"; err != nil || code != 3 || out.String() != want {
				t.Errorf("exit status %d, %v, output %q, want %q", code, err, out.String(), want)
			}
			if err := p.collect(ctx, results, "report.json", "what it did not write"); err != nil {
				t.Error(err)
			}
			if text, err := os.ReadFile(filepath.Join(results, "report.json")); err != nil || string(text) != "{}\n" {
				t.Errorf("report %q, %v", text, err)
			}
			if err := p.link(ctx, config, "kubelet-config"); err == nil {
				t.Error("a link took another one's place")
			}
			stopped, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := p.run(stopped, []string{"true"}, io.Discard); err == nil {
				t.Error("a command ran after the end")
			}
		})
	}
}

func TestCommandLineIsForTheFolderOfTheSuite(t *testing.T) {
	r := Run{Suite: NodeOnMachine, Labels: "x", Dir: "/results"}
	args := r.args(rig.SuiteDir, []string{"--host=h"}, "-second", nil, 1)
	line := strings.Join(args, " ")
	for _, want := range []string{
		rig.SuiteDir + "/ginkgo --procs=1 ", "--output-dir=" + rig.SuiteDir + " --json-report=report-second.json ",
		" " + rig.SuiteDir + "/" + rig.NodeSuite + " -- --host=h", "--skip-file=/test/e2e/common/ ",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %q", want, line)
		}
	}
	if strings.Contains(line, r.Dir) {
		t.Errorf("%q names a folder of this machine", line)
	}
}
