package walls

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// says returns the lines that a target prints.
func says(t *testing.T, target string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", target)
	cmd.Dir = top(t)
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("make %s: %v", target, err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// A terminal of the usual size shows the whole of make help.
func TestHelpFitsOnAScreen(t *testing.T) {
	lines := says(t, "help")
	if len(lines) > 23 {
		t.Errorf("make help has %d lines: leave one of 24 to the prompt", len(lines))
	}
	for _, line := range lines {
		if len(line) > 80 {
			t.Errorf("%q is longer than 80", line)
		}
	}
	text := strings.Join(lines, "\n") + "\n"
	for _, target := range []string{
		"run", "test", "verify", "fix", "test-service", "bench", "conformance", "test-long", "fuzz", "release", "help-all",
	} {
		if !strings.Contains("\n"+text, "\n"+target+" ") {
			t.Errorf("make help does not name %s:\n%s", target, text)
		}
	}
}

func TestHelpAllNamesEveryTarget(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(top(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(says(t, "help-all"), "\n")
	targets := regexp.MustCompile(`(?m)^\.PHONY: (\S+)$`).FindAllStringSubmatch(string(source), -1)
	if len(targets) < 20 {
		t.Fatalf("the Makefile has only the targets %v", targets)
	}
	for _, target := range targets {
		switch name := target[1]; {
		case name == "help", name == "node-programs": // make prints the first by itself, and run calls the other
		case !strings.Contains(text, "\n  "+name+" ") && !strings.HasPrefix(text, name+" "):
			t.Errorf("make help-all does not name %s:\n%s", name, text)
		}
	}
}
