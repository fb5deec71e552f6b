package kubeletconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with the inputs.
type Problem struct {
	// Field is the path of a KubeletConfiguration field, a flag with its dashes, or a file.
	Field string
	// Value is what was given; nil where there is nothing to show.
	Value any
	// Source is where it was given, as in Config.Provenance; empty if it is a default or unknown.
	Source string
	// Detail says what is wrong, Remedy what to do.
	Detail, Remedy string
}

func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Field)
	if p.Value != nil {
		fmt.Fprintf(&b, "=%s", show(p.Field, p.Value))
	}
	if p.Source != "" {
		fmt.Fprintf(&b, " (%s)", p.Source)
	}
	fmt.Fprintf(&b, ": %s: %s", p.Detail, p.Remedy)
	return b.String()
}

// problems collects what is wrong, with where each setting came from.
type problems struct {
	from provenance
	list []Problem
}

func (p *problems) add(field string, value any, detail, remedy string) {
	p.list = append(p.list,
		Problem{Field: field, Value: value, Source: p.from.of(field), Detail: detail, Remedy: remedy})
}

// check adds a problem unless ok.
func (p *problems) check(ok bool, field string, value any, detail, remedy string) {
	if !ok {
		p.add(field, value, detail, remedy)
	}
}

// has says that there is a problem with field or with something in it.
func (p *problems) has(field string) bool {
	return slices.ContainsFunc(p.list, func(q Problem) bool {
		rest, under := strings.CutPrefix(q.Field, field)
		return under && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// without leaves out what is about fields that err has named already: their values were not read.
func (p *problems) without(err error) *problems {
	named := &problems{}
	for _, e := range Flatten(err) {
		if q := (Problem{}); errors.As(e, &q) {
			named.list = append(named.list, q)
		}
	}
	left := &problems{from: p.from}
	for _, q := range p.list {
		if !slices.ContainsFunc(named.list, func(n Problem) bool {
			rest, under := strings.CutPrefix(q.Field, n.Field)
			return under && (rest == "" || rest[0] == '.' || rest[0] == '[')
		}) {
			left.list = append(left.list, q)
		}
	}
	return left
}

// Flatten returns the errors that err joins; none for nil.
func Flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, Flatten(e)...)
	}
	return all
}

// Once joins the errors in err without those that a Problem says already: a service that reads the configuration
// refuses the same field, with the field's name first.
func Once(err error) error {
	all := Flatten(err)
	var fields []string
	for _, e := range all {
		if p := (Problem{}); errors.As(e, &p) {
			fields = append(fields, p.Field)
		}
	}
	return errors.Join(slices.DeleteFunc(all, func(e error) bool {
		return !errors.As(e, new(Problem)) && slices.ContainsFunc(fields, func(field string) bool {
			rest, same := strings.CutPrefix(e.Error(), field)
			return same && rest != "" && strings.ContainsRune(":= ", rune(rest[0]))
		})
	})...)
}

func (p *problems) err() error {
	var all []error
	for _, q := range p.list {
		all = append(all, q)
	}
	return errors.Join(all...)
}

// Warning names settings that are accepted without having the effect that they have in the kubelet.
type Warning struct {
	// Message is constant for a kind of warning.
	Message string
	// Fields are what it is about, each as "path=value (source)" or in words.
	Fields []string
}
