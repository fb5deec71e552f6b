package nodelogs

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"
)

const (
	maxTailLines   = 100000
	maxNameLength  = 256
	maxServices    = 4
	journalTime    = "2006-1-2 15:4:5"
	queryParameter = "query"
)

// safeName is what the name of a service may be made of. Nothing of it can be taken for an option.
var safeName = regexp.MustCompile(`^[a-zA-Z:0-9@_.][a-zA-Z\-_.:0-9@]*$`)

// Query is a question to the node's logs.
type Query struct {
	// The services to show logs of, from the journal, or from a file of their name.
	Services []string
	// File is wanted instead.
	File string

	since, until time.Time
	tail, boot   *int
	pattern      string
}

// parameters of a query.
var parameters = []string{queryParameter, "sinceTime", "untilTime", "tailLines", "boot", "pattern"}

// Asks reports whether a request's query is one to the logs, and not for a file by its path.
func Asks(q url.Values) bool {
	for _, p := range parameters {
		if q.Get(p) != "" || p == queryParameter && q.Has(p) {
			return true
		}
	}
	return false
}

// ParseQuery reads it. The error names all that is wrong.
func ParseQuery(q url.Values) (*Query, error) {
	var n Query
	var files []string
	var problems []error
	bad := func(name, value, why string) {
		problems = append(problems, fmt.Errorf("%s is %q: %s", name, value, why))
	}
	for _, v := range q[queryParameter] {
		switch {
		case strings.ContainsAny(v, `/\`):
			files = append(files, v)
		case strings.TrimSpace(v) == "":
		case len(v) > maxNameLength:
			bad(queryParameter, v[:20]+"…", fmt.Sprintf("give a name of %d characters at most", maxNameLength))
		case !safeName.MatchString(v):
			bad(queryParameter, v, "give the name of a service or a file")
		default:
			n.Services = append(n.Services, v)
		}
	}
	moment := func(name string, to *time.Time) {
		if v := q.Get(name); v != "" {
			t, err := time.Parse(time.RFC3339, v)
			if err != nil {
				bad(name, v, "give a time as of RFC 3339")
			}
			*to = t
		}
	}
	moment("sinceTime", &n.since)
	moment("untilTime", &n.until)
	number := func(name string, to **int, low, high int) {
		if v := q.Get(name); v != "" {
			i, err := strconv.Atoi(v)
			if err != nil || i < low || i > high {
				bad(name, v, fmt.Sprintf("give a whole number of %d to %d", low, high))
			}
			*to = &i
		}
	}
	number("tailLines", &n.tail, 0, maxTailLines)
	number("boot", &n.boot, -maxTailLines, 0)
	n.pattern = q.Get("pattern")
	if _, err := syntax.Parse(n.pattern, syntax.Perl); err != nil {
		bad("pattern", n.pattern, "give a regular expression")
	}
	if !n.since.IsZero() && !n.until.IsZero() && n.since.After(n.until) {
		bad("untilTime", q.Get("untilTime"), "give a time after sinceTime")
	}
	problems = append(problems, n.choose(files, len(problems) == 0)...)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return &n, nil
}

// choose checks that one kind of thing is asked for.
func (n *Query) choose(files []string, readable bool) (problems []error) {
	switch {
	case len(files) == 0 && len(n.Services) == 0 && readable:
		problems = append(problems, errors.New("query is empty: give the name of a service or a file"))
	case len(files) > 0 && len(n.Services) > 0:
		problems = append(problems, errors.New("query names a file and a service: give one of them"))
	case len(files) > 1:
		problems = append(problems, errors.New("query names several files: give one"))
	case len(n.Services) > maxServices:
		problems = append(problems,
			fmt.Errorf("query names %d services: give %d at most", len(n.Services), maxServices))
	case len(files) == 1 && n.filtered():
		problems = append(problems, errors.New("query names a file, of which all is shown: give no options"))
	case len(files) == 1:
		n.File = files[0]
	}
	return problems
}

// filtered reports whether not all of a log is wanted.
func (n *Query) filtered() bool {
	return !n.since.IsZero() || !n.until.IsZero() || n.tail != nil || n.boot != nil || n.pattern != ""
}

// journalArguments are what journalctl is called with.
func (n *Query) journalArguments(services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if !n.since.IsZero() {
		args = append(args, "--since="+n.since.UTC().Format(journalTime))
	}
	if !n.until.IsZero() {
		args = append(args, "--until="+n.until.UTC().Format(journalTime))
	}
	if n.tail != nil {
		args = append(args, "--pager-end", "--lines="+strconv.Itoa(*n.tail))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if n.pattern != "" {
		args = append(args, "--grep="+n.pattern)
	}
	if n.boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*n.boot))
	}
	return args
}
