package conformance

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Agents, as the table and the folders of results name them.
const (
	Kubelet  = "kubelet"
	Microlet = "microlet"
)

// Judgement is what one run of one agent means.
type Judgement struct {
	Agent string
	// Expected is how many specs of the kubelet's list the selection has, Met
	// how many of them passed.
	Expected, Met int
	// Passed, Failed and Skipped count all specs that were selected.
	Passed, Failed, Skipped int
	// Second is how many passed at their second try.
	Second int
	// Complaints are why the run is no success, one a line.
	Complaints []string
}

// Judge compares the results of an agent with the kubelet's list. Compare is
// what the kubelet did in the same selection, to judge specs that the list
// does not have; it may be nil.
func Judge(agent string, results Results, known Known, focus *regexp.Regexp, labels string,
	compare *Results) Judgement {
	j := Judgement{Agent: agent}
	for _, r := range results.Specs {
		switch r.State {
		case Passed:
			j.Passed++
			if r.Tries > 1 {
				j.Second++
			}
		case Failed:
			j.Failed++
		case Skipped, Absent:
			j.Skipped++
		}
	}
	complain := func(format string, args ...any) { j.Complaints = append(j.Complaints, fmt.Sprintf(format, args...)) }
	for _, what := range results.Broken {
		complain("outside of specs: %s", oneLine(what))
	}
	if j.Passed+j.Failed == 0 {
		complain("no spec ran: look at the focus and the labels")
	}
	listed := map[string]bool{}
	reasons := known.Reasons
	for _, name := range known.Reference.Focused(known.Suite, focus) {
		listed[name] = true
		r, ran := results.Specs[name]
		if !ran && labels != DefaultLabels && results.All[name] {
			continue // another selection, which does not have it
		}
		j.Expected++
		switch {
		case !results.All[name]:
			complain("not in the suite any more: %s", name)
		case !ran:
			complain("not run: %s", name)
		case r.State == Skipped:
			complain("skipped, and the kubelet's list has it: %s: %s", name, oneLine(r.Reason))
		case r.State == Failed && reasons[name] != "" && agent == Microlet:
			complain("failed (known: %s): %s", reasons[name], name)
		case r.State == Failed:
			complain("failed, and the kubelet's list has it: %s: %s", name, oneLine(r.Reason))
		default:
			j.Met++
			if agent == Microlet && reasons[name] != "" {
				complain("passed, remove its line from the reasons: %s", name)
			}
		}
	}
	if compare != nil && agent == Microlet {
		for _, name := range slices.Sorted(maps.Keys(compare.Specs)) {
			if !listed[name] && compare.Specs[name].State == Passed && results.Specs[name].State != Passed {
				complain("not passed, and the kubelet passed it: %s: %s", name, oneLine(results.Specs[name].Reason))
			}
		}
	}
	if known.Skips != nil && agent == Kubelet && labels == DefaultLabels {
		for _, name := range slices.Sorted(maps.Keys(results.Specs)) {
			// One that passes in spite of a reason does so on another machine.
			if r := results.Specs[name]; r.State != Passed && known.Skips[name] == "" && !listed[name] {
				complain("%s, and nothing says why: %s: %s", r.State, name, oneLine(r.Reason))
			}
		}
	}
	return j
}

// oneLine shortens a failure's text to what fits beside a name.
func oneLine(text string) string {
	const most = 200
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + " …"
	}
	return text
}
