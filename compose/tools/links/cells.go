package main

import (
	"fmt"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// maxCellWords is how many words a cell of a table may have. A reviewer sees no change in a longer one.
const maxCellWords = 40

// cell is a cell of a table.
type cell struct {
	text string
	// line is that of the table's row; from 1.
	line int
}

// long returns a line for each cell of a page that has too many words. A link counts by its text.
func long(name string, p page) []string {
	var problems []string
	for _, c := range p.cells {
		if n := len(strings.Fields(c.text)); n > maxCellWords {
			problems = append(problems, fmt.Sprintf("%s:%d: a cell has %d words, and may have %d: %s …",
				name, c.line, n, maxCellWords, strings.Join(strings.Fields(c.text)[:5], " ")))
		}
	}
	return problems
}

// cellText is what a reader sees of a cell. Unlike words, it keeps apart what HTML such as <br> separates, and it has the
// addresses that are links without a text.
func cellText(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the walker returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
		case *ast.AutoLink:
			b.Write(n.Label(source))
		case *ast.RawHTML:
			b.WriteByte(' ')
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}
