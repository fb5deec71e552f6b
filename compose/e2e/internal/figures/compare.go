package figures

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"time"
)

// Rule says how close the values of some paths must be.
type Rule struct {
	path *regexp.Regexp
	same func(a, b Fact) bool
}

// Moving is a rule for values that are not compared, because they change between two answers.
func Moving(path string) Rule {
	return Rule{regexp.MustCompile(path), func(Fact, Fact) bool { return true }}
}

// Exact is a rule for values that must be the same.
func Exact(path string) Rule {
	return Rule{regexp.MustCompile(path), func(a, b Fact) bool { return a.Text == b.Text && a.Number == b.Number }}
}

// Near is a rule for numbers that differ by a share of the greater one at most. A difference below slack does not
// count.
func Near(path string, share, slack float64) Rule {
	return Rule{regexp.MustCompile(path), func(a, b Fact) bool {
		return a.Text == b.Text && near(a.Number, b.Number, share, slack)
	}}
}

// NearTime is a rule for times in texts, which differ by so much at most.
func NearTime(path string, slack time.Duration) Rule {
	return Rule{regexp.MustCompile(path), func(a, b Fact) bool {
		timeA, errA := time.Parse(time.RFC3339Nano, a.Text)
		timeB, errB := time.Parse(time.RFC3339Nano, b.Text)
		return errA == nil && errB == nil && timeA.Sub(timeB).Abs() <= slack
	}}
}

func near(a, b, share, slack float64) bool {
	difference := math.Abs(a - b)
	return difference <= slack || difference <= share*max(math.Abs(a), math.Abs(b))
}

// Difference is a path on which the answers differ. What an answer does not have is empty.
type Difference struct {
	Path, A, B string
}

// String is the difference for people.
func (d Difference) String() string {
	switch {
	case d.A == "":
		return fmt.Sprintf("%s: only microlet has it: %s", d.Path, d.B)
	case d.B == "":
		return fmt.Sprintf("%s: only the kubelet has it: %s", d.Path, d.A)
	}
	return fmt.Sprintf("%s: the kubelet says %s, microlet %s", d.Path, d.A, d.B)
}

// Compare lists the differences in order of their paths. The first rule whose expression finds something in a path
// judges the values there. Values without a rule must be the same.
func Compare(a, b Facts, rules []Rule) []Difference {
	paths := slices.Collect(maps.Keys(a))
	for path := range b {
		if _, both := a[path]; !both {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	exact := Exact("")
	var all []Difference
	for _, path := range paths {
		inA, hasA := a[path]
		inB, hasB := b[path]
		d := Difference{Path: path}
		if hasA {
			d.A = said(inA)
		}
		if hasB {
			d.B = said(inB)
		}
		rule := exact
		if i := slices.IndexFunc(rules, func(r Rule) bool { return r.path.MatchString(path) }); i >= 0 {
			rule = rules[i]
		}
		if hasA != hasB || !rule.same(inA, inB) {
			all = append(all, d)
		}
	}
	return all
}

// said is what an answer that has the fact says; an empty text too.
func said(f Fact) string {
	if text := f.String(); text != "" {
		return text
	}
	return `""`
}

// Rate is how much a number has grown for each second between two answers of one agent.
func Rate(first, second Facts, path string) (float64, error) {
	a, hasA := first[path]
	b, hasB := second[path]
	if !hasA || !hasB || a.Text != "" || b.Text != "" {
		return 0, fmt.Errorf("%s is no number in both answers", path)
	}
	took := b.At.Sub(a.At).Seconds()
	if a.At.IsZero() || took <= 0 {
		return 0, fmt.Errorf("%s: taken at %s, and then at %s", path, a.At, b.At)
	}
	return (b.Number - a.Number) / took, nil
}

// Explanation is a difference between the kubelet and microlet that is meant.
type Explanation struct {
	path  *regexp.Regexp
	meant func(d Difference) bool
	// Why it is meant.
	Why string
}

// Explain says why paths differ as the function says; nil takes any difference.
func Explain(path string, meant func(d Difference) bool, why string) Explanation {
	return Explanation{path: regexp.MustCompile(path), meant: meant, Why: why}
}

// OnlyKubelet and OnlyMicrolet are differences in what is there.
func OnlyKubelet(d Difference) bool  { return d.B == "" }
func OnlyMicrolet(d Difference) bool { return d.A == "" }

// String is the explanation for people.
func (e Explanation) String() string { return e.path.String() + ": " + e.Why }

// Unexplained returns the differences that nothing explains.
func Unexplained(all []Difference, explained []Explanation) []Difference {
	return slices.DeleteFunc(slices.Clone(all), func(d Difference) bool {
		return slices.ContainsFunc(explained, func(e Explanation) bool {
			return e.path.MatchString(d.Path) && (e.meant == nil || e.meant(d))
		})
	})
}
