package command

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/catalog"
)

// A name that no command has is answered with the one that was meant, or with where they are listed.
func TestNamesOfCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"statsu"}, `"statsu" is no command: did you mean microlet status?`},
		{[]string{"unknown"}, `"unknown" is no command: see microlet --help`},
		{[]string{"help", "unknown"}, `"unknown" is no command: see microlet --help`},
		{[]string{"help", "up", "more"}, `"more" is no command: see microlet up --help`},
		{[]string{"completion", "bahs"}, `there is no completion for "bahs": use one of bash, fish, powershell, zsh`},
		{[]string{"completion", "bash", "extra"}, `"extra" is no flag`},
		{[]string{"health", "bsu"}, `"bsu" is no service: name one of bus, podsync`},
		{[]string{"run-pod", "/nonexistent"}, "manifest /nonexistent: it does not exist: check the path"},
		{[]string{"run-pod", "x", "--timeout=-3s"}, "timeout is -3s: give a positive duration"},
	} {
		if got := refused(t, c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
	for _, args := range [][]string{{}, {"help"}, {"help", "up"}, {"completion"}} {
		if out, err := execute(t, args...); err != nil || out == "" {
			t.Errorf("%q: %v, and %d bytes", args, err, len(out))
		}
	}
}

// A person who types the name of a service meant something else. A unit, which has no terminal, starts it.
func TestAServiceOnATerminal(t *testing.T) {
	for name, want := range map[string]string{
		"stats": "see microlet top and microlet status", "pleg": "see microlet status pleg and microlet logs pleg",
	} {
		cmd := Of([]string{name})
		cmd.SetIn(terminal(t))
		cmd.SetArgs([]string{name})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), name+" is a service") {
			t.Errorf("%s: %v", name, err)
		}
		cmd = Of([]string{name})
		cmd.SetIn(terminal(t))
		cmd.SetArgs([]string{name, "--runtime-dir=relative", "--replica=.."})
		if err := cmd.ExecuteContext(t.Context()); err == nil || strings.Contains(err.Error(), "is a service") {
			t.Errorf("%s with a flag: %v", name, err)
		}
	}
}

// terminal is one that no person sits at.
func terminal(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestOneServicesCommandLine: what a service answers is the same, whether the other commands are there or not.
func TestOneServicesCommandLine(t *testing.T) {
	t.Parallel()
	for _, s := range catalog.Services() {
		for _, args := range [][]string{{"--help"}, {"--no-such"}, {"surplus"}} {
			args = append([]string{string(s.Role)}, args...)
			whole, wholeErr := answer(New(), args)
			alone, aloneErr := answer(Of(args), args)
			if whole != alone || fmt.Sprint(wholeErr) != fmt.Sprint(aloneErr) {
				t.Errorf("%q: with all commands %q, %v; alone %q, %v", args, whole, wholeErr, alone, aloneErr)
			}
		}
		if n := len(Of([]string{string(s.Role)}).Commands()); n != 1 {
			t.Errorf("%s: %d commands", s.Role, n)
		}
	}
	if n := len(Of([]string{"podsyn"}).Commands()); n < 20 {
		t.Errorf("an unknown name is compared with %d commands", n)
	}
}

func answer(cmd *cobra.Command, args []string) (string, error) {
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(service.WithArguments(context.Background(), args))
	return out.String(), err
}
