package expansion

import (
	"slices"
	"strings"
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
		if got := Expand(text, lookup); got != want {
			t.Errorf("Expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"$(A)", "$$(A)$(B", "$($(A))", "x$", "$$$", "$(\xff)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Expand(text, func(string) (string, bool) { return "", false })
		// With nothing to bring in, only escapes change: each takes one dollar away.
		if removed := len(text) - len(got); removed < 0 || removed > strings.Count(text, "$$") {
			t.Errorf("Expand(%q) = %q", text, got)
		}
		if !strings.Contains(text, "$$") && got != text {
			t.Errorf("Expand(%q) = %q with nothing to expand", text, got)
		}
		if escaped := strings.ReplaceAll(text, "$", "$$"); Expand(escaped, lookup) != text {
			t.Errorf("escaping all of %q does not keep it", text)
		}
	})
}

func TestCommand(t *testing.T) {
	env := []v1.EnvVar{
		{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)"}, {Name: "A", Value: "later"},
		{Name: "F", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
	command := []string{"sh", "-c", "$(A) $(B) $(F)| $(MISSING) $$(A) $HOME"}
	want := []string{"sh", "-c", "later $(A) | $(MISSING) $(A) $HOME"}
	if got := Command(command, env); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if command[2] != "$(A) $(B) $(F)| $(MISSING) $$(A) $HOME" {
		t.Error("the pod's own command was changed")
	}
}
