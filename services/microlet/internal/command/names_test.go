package command

import (
	"strings"
	"testing"
)

// A name that no command has is answered with the one that was meant, or with where they are listed.
func TestNamesOfCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"statsu"}, `"statsu" is no command: did you mean microlet sta`},
		{[]string{"nobody"}, `"nobody" is no command: see microlet --help`},
		{[]string{"help", "nobody"}, `"nobody" is no command: see microlet --help`},
		{[]string{"help", "up", "more"}, `"more" is no command: see microlet up --help`},
		{[]string{"completion", "bahs"}, `"bahs" is no command: did you mean microlet completion bash?`},
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
