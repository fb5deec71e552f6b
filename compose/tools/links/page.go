package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// link is where a page leads to.
type link struct {
	target string
	// line is where the paragraph, the heading or the row of a table begins that has the link; from 1.
	line int
}

// page is what a Markdown file has of links and tables.
type page struct {
	links []link
	cells []cell
	// anchors are the fragments of its headings.
	anchors []string
}

func read(files fs.FS, name string) (page, error) {
	source, err := fs.ReadFile(files, name)
	if err != nil {
		return page{}, err
	}
	return parse(source), nil
}

func parse(source []byte) page {
	var p page
	seen := map[string]int{}
	line := 1
	root := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the walker returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		if n.Type() == ast.TypeBlock && n.Lines().Len() > 0 {
			line = 1 + bytes.Count(source[:n.Lines().At(0).Start], []byte("\n"))
		}
		switch n := n.(type) {
		case *ast.Heading:
			p.anchors = append(p.anchors, anchor(words(n, source), seen))
		case *ast.Link:
			p.links = append(p.links, link{string(n.Destination), line})
		case *ast.Image:
			p.links = append(p.links, link{string(n.Destination), line})
		case *tables.TableCell:
			p.cells = append(p.cells, cell{cellText(n, source), line})
		}
		return ast.WalkContinue, nil
	})
	return p
}

// words are the text of a node, without its marks.
func words(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the walker returns no error
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// anchor is the fragment that GitHub gives a heading: lower case, with a hyphen for a space and without punctuation. A
// heading that is not the first of its words gets their number.
func anchor(heading string, seen map[string]int) string {
	a := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	n := seen[a]
	seen[a]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", a, n)
	}
	return a
}
