package main

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestLinks(t *testing.T) {
	files := fstest.MapFS{
		"README.md": {Data: []byte(`# Top

See [the page](docs/page.md), [a part](docs/page.md#a-part-of-cgroup-v2s-code) and [here](#top).
[elsewhere](https://example.com/none#none), [mail](mailto:a@example.com), [code](services/pleg)

` + "`[no](link.md)`" + `

| a | b |
|---|---|
| [x](docs/none.md) | [y](docs/page.md#none) |

[out](../none.md) and [root](/docs/page.md) and [a file's](services/pleg/pleg.go#L3)
![picture](none.png)
`)},
		"docs/page.md": {Data: []byte(`# Page

## A part of cgroup v2's ` + "`code`" + `

## Twice

## Twice

[back](../README.md#top), [second](#twice-1), [third](#twice-2)
`)},
		"services/pleg/pleg.go": {Data: []byte("package pleg\n")},
	}
	got, err := check(files, []string{"README.md", "docs/page.md"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"README.md:10: docs/none.md: there is no docs/none.md",
		"README.md:10: docs/page.md#none: docs/page.md has no such heading",
		"README.md:12: ../none.md: it leads out of the checkout",
		"README.md:12: /docs/page.md: a link within the checkout is relative",
		"README.md:12: services/pleg/pleg.go#L3: only a page has headings",
		"README.md:12: none.png: there is no none.png",
		"docs/page.md:9: #twice-2: docs/page.md has no such heading",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAPageThatIsNotThere(t *testing.T) {
	if _, err := check(fstest.MapFS{}, []string{"none.md"}); err == nil {
		t.Error("no error")
	}
}
