package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// State is what became of a spec.
type State string

// States of specs. Absent is the state of a spec that the suite does not have.
const (
	Passed  State = "passed"
	Failed  State = "failed" // also: panicked, timed out, interrupted
	Skipped State = "skipped"
	Absent  State = "absent"
)

// Result is what became of one spec.
type Result struct {
	State State
	Took  time.Duration
	// Tries is how often it was run; above 1 it failed before.
	Tries int
	// Reason reports why it failed, or why it skipped itself.
	Reason string
}

// Results are what became of the specs that were selected, by full name. A
// spec that the selection left out is not there.
type Results struct {
	Specs map[string]Result
	// All are the names of all specs of the suite, selected or not.
	All map[string]bool
	// Broken reports what went wrong outside of specs.
	Broken []string
}

// suiteReport is the part that is used of ginkgo's JSON report.
type suiteReport struct {
	SuiteSucceeded             bool
	SpecialSuiteFailureReasons []string
	SpecReports                []specReport
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
}

func (s specReport) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts[:len(s.ContainerHierarchyTexts):len(s.ContainerHierarchyTexts)],
		s.LeafNodeText), " ")
}

// ReadReport reads the JSON report of ginkgo.
func ReadReport(path string) (Results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Results{}, fmt.Errorf("read report of the suite: %w", err)
	}
	results, err := parseReport(text)
	if err != nil {
		return Results{}, fmt.Errorf("read report of the suite %s: %w", path, err)
	}
	return results, nil
}

func parseReport(text []byte) (Results, error) {
	var suites []suiteReport
	if err := json.Unmarshal(text, &suites); err != nil {
		return Results{}, err
	}
	if len(suites) != 1 {
		return Results{}, fmt.Errorf("it has %d suites, want one", len(suites))
	}
	results := Results{Specs: map[string]Result{}, All: map[string]bool{}}
	// A failed spec also fails the suite; this shows what else failed it.
	for _, reason := range suites[0].SpecialSuiteFailureReasons {
		if !strings.HasPrefix(reason, "Detected Programmatic Focus") {
			results.Broken = append(results.Broken, reason)
		}
	}
	for _, s := range suites[0].SpecReports {
		if s.LeafNodeType != "It" {
			if state(s) == Failed {
				results.Broken = append(results.Broken, s.LeafNodeType+": "+s.Failure.Message)
			}
			continue
		}
		name := s.name()
		results.All[name] = true
		// Ginkgo calls skipped both what the selection left out and what
		// skipped itself; only the latter says why.
		if st := state(s); st != Skipped || s.Failure.Message != "" {
			results.Specs[name] = Result{State: st, Took: s.RunTime, Tries: 1, Reason: s.Failure.Message}
		}
	}
	if len(results.All) == 0 {
		return Results{}, fmt.Errorf("it has no specs")
	}
	return results, nil
}

func state(s specReport) State {
	switch s.State {
	case "passed":
		return Passed
	case "skipped", "pending":
		return Skipped
	}
	return Failed
}

// Failures are the names of the specs that failed.
func (r Results) Failures() []string { return r.named(Failed) }

// Passes are the names of the specs that passed.
func (r Results) Passes() []string { return r.named(Passed) }

// Merge puts the results of a second run of some specs in the place of those
// of the first.
func (r Results) Merge(second Results) {
	for name, again := range second.Specs {
		again.Tries += r.Specs[name].Tries
		if again.State == Failed && again.Reason == "" {
			again.Reason = r.Specs[name].Reason
		}
		r.Specs[name] = again
	}
}
