// Package expansion replaces references of the form $(NAME) in commands, arguments and environment values.
//
// It follows the rules of the Pod API: $(NAME) becomes the value of the variable. $$ becomes $, and what follows is
// not a reference. A reference to an unknown variable, or one that is not closed, stays as it is written. The result
// is not expanded again.
//
// A short text can name a long value many times, so a result is measured before it is built. What execve(2) would not
// take is an error that says how long it is.
package expansion

import (
	"fmt"
	"strings"
)

// Expand returns text with its references replaced, or an error if that is longer than limit. value returns a
// variable's value, and false for one that there is none of.
func Expand(text string, value func(name string) (string, bool), limit int) (string, error) {
	size := 0
	replace(text, value, func(part string) { size += len(part) })
	if size > limit {
		return "", fmt.Errorf("%d bytes after expansion, at most %d are possible", size, limit)
	}
	if !strings.Contains(text, "$") {
		return text, nil
	}
	var out strings.Builder
	out.Grow(size)
	replace(text, value, func(part string) { out.WriteString(part) })
	return out.String(), nil
}

// replace hands over the parts of which the expanded text consists.
func replace(text string, value func(name string) (string, bool), part func(string)) {
	for {
		before, rest, found := strings.Cut(text, "$")
		part(before)
		if !found {
			return
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			part("$")
			text = rest[1:]
		case strings.HasPrefix(rest, "("):
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed {
				// Not a reference: the two characters stand for themselves, what follows is read on.
				part("$(")
				text = rest[1:]
				continue
			}
			if v, ok := value(name); ok {
				part(v)
			} else {
				part(text[len(before) : len(text)-len(after)])
			}
			text = after
		default:
			part("$")
			text = rest
		}
	}
}
