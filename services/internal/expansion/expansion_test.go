package expansion

import (
	"strings"
	"testing"
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
