package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// Table writes the results of both agents beside each other, in Markdown. An
// agent that never ran has nil.
func Table(kubelet, microlet *Results) string {
	var buf bytes.Buffer
	_, _ = fmt.Fprintf(&buf, "| spec | %s | %s |\n|---|---|---|\n", Kubelet, Microlet)
	names := map[string]bool{}
	for _, r := range []*Results{kubelet, microlet} {
		if r != nil {
			for name := range r.Specs {
				names[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		_, _ = fmt.Fprintf(&buf, "| %s | %s | %s |\n", cell(name), outcome(kubelet, name), outcome(microlet, name))
	}
	_, _ = fmt.Fprintf(&buf, "| **all** | %s | %s |\n", total(kubelet), total(microlet))
	return buf.String()
}

func outcome(results *Results, name string) string {
	if results == nil {
		return "not run"
	}
	r, ok := results.Specs[name]
	switch {
	case !ok:
		return "not run"
	case r.State == Skipped:
		return "skip"
	case r.State == Failed:
		return "**fail** " + seconds(r.Took)
	case r.Tries > 1:
		return "pass at try " + fmt.Sprint(r.Tries) + " " + seconds(r.Took)
	}
	return "pass " + seconds(r.Took)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func total(results *Results) string {
	if results == nil {
		return "not run"
	}
	return fmt.Sprintf("%d pass, %d fail, %d skip", len(results.Passes()), len(results.Failures()),
		len(results.named(Skipped)))
}

// cell keeps a text from ending its cell.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// The lines around the generated part of the page for users; the first names
// the suite by the command that writes it.
func pageBegin(suite Suite) string { return "<!-- results: written by `" + suite.recorder() + "` -->" }

const pageEnd = "<!-- end of results -->"

// WritePage replaces the suite's generated part of the page.
func WritePage(path string, suite Suite, section string) error {
	begin := pageBegin(suite)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write results to the page: %w", err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		return fmt.Errorf("write results to the page %s: it lacks the lines %q and %q", path, begin, pageEnd)
	}
	if err := os.WriteFile(path, []byte(head+begin+"\n\n"+section+"\n"+pageEnd+tail), 0o644); err != nil {
		return fmt.Errorf("write results to the page: %w", err)
	}
	return nil
}

// Section is the generated part: counts, and each spec of the kubelet's list
// that microlet does not pass, with the reason.
func Section(known Known, microlet Results) string {
	ref := known.Reference
	var buf bytes.Buffer
	var missing []string
	second := 0
	for _, name := range ref.Specs {
		r := microlet.Specs[name]
		if r.State != Passed {
			missing = append(missing, name)
		} else if r.Tries > 1 {
			second++
		}
	}
	_, _ = fmt.Fprintf(&buf, "| suite | kubelet passes | microlet passes of these | of them at the second try "+
		"|\n|---|---|---|---|\n| Kubernetes %s | %d | %d | %d |\n",
		ref.Version, len(ref.Specs), len(ref.Specs)-len(missing), second)
	if len(missing) == 0 {
		return buf.String()
	}
	_, _ = fmt.Fprintf(&buf, "\nNot passed by microlet:\n\n| spec | why |\n|---|---|\n")
	for _, name := range missing {
		reason := known.Reasons[name]
		if reason == "" {
			reason = "not looked into yet"
		}
		_, _ = fmt.Fprintf(&buf, "| %s | %s |\n", cell(name), cell(reason))
	}
	return buf.String()
}
