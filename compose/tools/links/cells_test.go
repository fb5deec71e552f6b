package main

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// table returns a page with a table. The second cell of its row has n words and others.
func table(n int, others string) string {
	return "# Page\n\n| a | b |\n|---|---|\n| 1 | " + strings.Repeat("word ", n) + others + " |\n"
}

func TestCells(t *testing.T) {
	const link = "[a link](https://example.com/none)"
	for name, test := range map[string]struct {
		page string
		want string
	}{
		"as long as it may be":           {table(maxCellWords, ""), ""},
		"too long":                       {table(maxCellWords+1, ""), "41"},
		"a link counts by its text":      {table(maxCellWords-2, link), ""},
		"a link's text counts":           {table(maxCellWords-1, link), "41"},
		"an address is a word":           {table(maxCellWords, "https://example.com/none"), "41"},
		"code counts":                    {table(maxCellWords-1, "`a b`"), "41"},
		"a line break separates":         {table(maxCellWords-1, "a<br>b"), "41"},
		"a paragraph may be longer":      {strings.Repeat("word ", 100), ""},
		"a table in a block of code not": {"```\n" + table(100, "") + "```\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := check(fstest.MapFS{"page.md": {Data: []byte(test.page)}}, []string{"page.md"})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if test.want != "" {
				want = []string{"page.md:5: a cell has " + test.want + " words, and may have 40: word word word word word …"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
}
