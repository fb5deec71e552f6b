package explanation

import (
	"fmt"
	"io"
	"strings"
)

// Write prints an explanation as a person reads it: the causes first, then the tree.
func (x *Explanation) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s/%s (uid %s, source %s): %s\n", x.Namespace, x.Name, x.UID, x.Source, x.Verdict)
	for _, c := range x.Causes {
		fmt.Fprintf(&b, "  because %s: %s\n", c.Part, text(c.Reason, c.Message))
		if c.Remedy != "" {
			fmt.Fprintf(&b, "    to do: %s\n", c.Remedy)
		}
	}
	b.WriteString("\n")
	tree(&b, "", x.Parts)
	_, err := io.WriteString(w, b.String())
	return err
}

func tree(b *strings.Builder, indent string, parts []*Node) {
	for i, n := range parts {
		branch, below := "├─ ", "│  "
		if i == len(parts)-1 {
			branch, below = "└─ ", "   "
		}
		fmt.Fprintf(b, "%s%s%s: %s", indent, branch, n.Name, n.State)
		if shown := text(n.Reason, n.Message); shown != "" {
			fmt.Fprintf(b, ", %s", shown)
		}
		b.WriteString("\n")
		tree(b, indent+below, n.Children)
	}
}

// text is one line: a message may hold what a container wrote.
func text(reason, message string) string {
	message = printable(message)
	switch {
	case reason == "" || reason == message:
		return message
	case message == "":
		return reason
	}
	return reason + ": " + message
}

// printable keeps a message from another from driving the terminal: control characters become spaces.
func printable(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)), " ")
}
