package expansion

import (
	"errors"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func lookup(name string) (string, bool) {
	value, ok := map[string]string{"A": "a", "B": "$(A)", "E": "", "x y": "odd"}[name]
	return value, ok
}

func TestExpand(t *testing.T) {
	for text, want := range map[string]string{
		"":               "",
		"plain":          "plain",
		"$(A)":           "a",
		"-$(A)$(A)-":     "-aa-",
		"$(B)":           "$(A)", // what a reference brings in is not read again
		"$(E)":           "",
		"$(MISSING)":     "$(MISSING)",
		"$()":            "$()",
		"$$(A)":          "$(A)",
		"$$$(A)":         "$a",
		"$$$$(A)":        "$$(A)",
		"$A ${A}":        "$A ${A}",
		"$":              "$",
		"$(A":            "$(A",
		"$($(A)":         "$($(A)", // one reference, to "$(A", which there is not
		"$(A$(A":         "$(A$(A",
		"$(A))":          "a)",
		"$(x y)":         "odd",
		"€$(A)€":         "€a€",
		"$\xff$(A)":      "$\xffa",
		"$$(A)$$$(A)$(A": "$(A)$a$(A",
	} {
		if got, err := Expand(text, lookup, len(want)); got != want || err != nil {
			t.Errorf("Expand(%q) = %q, %v, want %q", text, got, err, want)
		}
		if got, err := Expand(text, lookup, len(want)-1); got != "" || err == nil {
			t.Errorf("Expand(%q) = %q, %v with a limit of one byte less", text, got, err)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"$(A)", "$$(A)$(B", "$($(A))", "x$", "$$$", "$(\xff)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Expand(text, func(string) (string, bool) { return "", false }, len(text))
		if err != nil {
			t.Fatal(err)
		}
		// With nothing to bring in, only escapes change: each takes one dollar away.
		if removed := len(text) - len(got); removed < 0 || removed > strings.Count(text, "$$") {
			t.Errorf("Expand(%q) = %q", text, got)
		}
		if !strings.Contains(text, "$$") && got != text {
			t.Errorf("Expand(%q) = %q with nothing to expand", text, got)
		}
		if escaped := strings.ReplaceAll(text, "$", "$$"); mustExpand(t, escaped) != text {
			t.Errorf("escaping all of %q does not keep it", text)
		}
	})
}

func mustExpand(t *testing.T, text string) string {
	t.Helper()
	got, err := Expand(text, lookup, math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestCommand(t *testing.T) {
	env := []v1.EnvVar{
		{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)"}, {Name: "A", Value: "later"},
		{Name: "F", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
	command := []string{"sh", "-c", "$(A) $(B) $(F)| $(MISSING) $$(A) $HOME"}
	want := []string{"sh", "-c", "later $(A) | $(MISSING) $(A) $HOME"}
	if got, err := Command(command, env); !slices.Equal(got, want) || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if command[2] != "$(A) $(B) $(F)| $(MISSING) $$(A) $HOME" {
		t.Error("the pod's own command was changed")
	}
}

// TestCommandsThatAreTooLong are errors that say where and how long, and nothing is built of them.
func TestCommandsThatAreTooLong(t *testing.T) {
	env := []v1.EnvVar{{Name: "V", Value: strings.Repeat("x", 100_000)}}
	for name, test := range map[string]struct {
		words []string
		want  string
	}{
		"a word": {
			[]string{"sh", "-c", strings.Repeat("$(V)", 4096)}, "exec.command[2]: 409600000 bytes after expansion",
		},
		"all of them": {
			slices.Repeat([]string{"$(V)"}, 4096),
			"exec.command[20]: all arguments and variables up to it take 2100189 bytes",
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Command(test.words, env)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2*maxStrings {
			t.Errorf("%s: %d bytes allocated", name, allocated)
		}
	}
}

// TestLimitsAreThoseOfExecve has the kernel take what is taken here, and refuse what is refused.
func TestLimitsAreThoseOfExecve(t *testing.T) {
	var stack syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_STACK, &stack); err != nil {
		t.Fatal(err)
	}
	usual := syscall.Rlimit{Cur: 8 << 20, Max: stack.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_STACK, &usual); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_STACK, &stack); err != nil {
			t.Error(err)
		}
	})
	run := func(words []string) error {
		c := exec.CommandContext(t.Context(), "true", words...)
		c.Env = []string{}
		return c.Run()
	}
	longest := strings.Repeat("x", MaxString())
	if err := run([]string{longest}); err != nil {
		t.Errorf("the longest string: %v", err)
	}
	if err := run([]string{longest + "x"}); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("a string that is too long: %v", err)
	}
	word := strings.Repeat("x", 1000)
	words := []string{}
	var sum Strings
	if err := sum.Add(len("true")); err != nil {
		t.Fatal(err)
	}
	for sum.Add(len(word)) == nil {
		words = append(words, word)
	}
	if err := run(words); err != nil {
		t.Errorf("as much as is taken: %v", err)
	}
	if err := run(append(words, word)); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("more than is taken: %v", err)
	}
}
