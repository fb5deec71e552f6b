// Package expansion replaces references of the form $(NAME) in commands, arguments and
// environment values.
//
// Its rules are those of the Pod API: $(NAME) becomes the variable's value, $$ becomes $
// and so keeps what follows from being a reference, a reference to an unknown variable and
// one that is never closed stay as they are written. What a reference brought in is not
// looked at again.
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
