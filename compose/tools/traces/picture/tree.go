package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/microlet/microlet/compose/tools/traces/span"
)

// node is a span and those that were begun in it, in the order of their starts.
type node struct {
	span.Span
	below []*node
}

// tree returns the trace of a root, and how many of its spans are below none that is there. A span that was sent twice
// is there once.
func tree(all []span.Span, root *span.Span) (t *node, lost int) {
	nodes := map[string]*node{}
	for _, s := range all {
		if s.Trace == root.Trace {
			nodes[s.ID] = &node{Span: s}
		}
	}
	for id, n := range nodes {
		if id == root.ID {
			continue
		}
		above := nodes[n.Parent]
		if above == nil {
			lost++
			continue
		}
		above.below = append(above.below, n)
	}
	for _, n := range nodes {
		slices.SortFunc(n.below, func(a, b *node) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID)) })
	}
	return nodes[root.ID], lost
}

// row is a line of the picture.
type row struct {
	*node
	depth int
}

// rows are those of a tree, from the top. It leaves out what took less than least and has nothing longer below it.
func rows(n *node, depth int, least time.Duration) []row {
	var below []row
	for _, b := range n.below {
		below = append(below, rows(b, depth+1, least)...)
	}
	if len(below) == 0 && n.End.Sub(n.Start) < least && depth > 0 {
		return nil
	}
	return append([]row{{n, depth}}, below...)
}

// size is how many spans a tree has.
func size(n *node) int {
	total := 1
	for _, b := range n.below {
		total += size(b)
	}
	return total
}

// last is the end of the span of a tree that ends last.
func last(n *node) time.Time {
	end := n.End
	for _, b := range n.below {
		if e := last(b); e.After(end) {
			end = e
		}
	}
	return end
}

// services adds those of a tree that are not yet among known, from the top.
func services(n *node, known []string) []string {
	if !slices.Contains(known, n.Service) {
		known = append(known, n.Service)
	}
	for _, b := range n.below {
		known = services(b, known)
	}
	return known
}
