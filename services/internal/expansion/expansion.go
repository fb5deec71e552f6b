// Package expansion replaces references of the form $(NAME) in commands, arguments and environment values.
//
// It follows the rules of the Pod API: $(NAME) becomes the value of the variable. $$ becomes $, and what follows is
// not a reference. A reference to an unknown variable, or one that is not closed, stays as it is written. The result
// is not expanded again.
package expansion

import "strings"

// Expand returns text with its references replaced. value returns a variable's value, and
// false for one that there is none of.
func Expand(text string, value func(name string) (string, bool)) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "("):
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed {
				// Not a reference: the two characters stand for themselves, what follows is read on.
				out.WriteString("$(")
				text = rest[1:]
				continue
			}
			if v, ok := value(name); ok {
				out.WriteString(v)
			} else {
				out.WriteString("$(" + name + ")")
			}
			text = after
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}
