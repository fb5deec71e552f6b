// Command links checks the pages of the checkout: "links PAGE...", from its top.
//
// A relative link must lead to a file or folder that exists, and its fragment to a heading of that page. Links to other
// hosts are not followed. A cell of a table has at most 40 words.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: links PAGE...")
		os.Exit(2)
	}
	problems, err := check(os.DirFS("."), os.Args[1:])
	for _, p := range problems {
		fmt.Println(p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "links:", err)
		os.Exit(2)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}

// check returns a line for each link of the pages that leads nowhere, and for each cell that is too long.
func check(files fs.FS, names []string) ([]string, error) {
	pages := map[string]page{}
	for _, name := range names {
		p, err := read(files, name)
		if err != nil {
			return nil, err
		}
		pages[name] = p
	}
	var problems []string
	for _, name := range names {
		problems = append(problems, long(name, pages[name])...)
		for _, l := range pages[name].links {
			problem, err := follow(files, pages, name, l.target)
			if err != nil {
				return nil, err
			}
			if problem != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: %s", name, l.line, l.target, problem))
			}
		}
	}
	return problems, nil
}

// follow says why a link of a page leads nowhere; empty if it leads somewhere, or to another host.
func follow(files fs.FS, pages map[string]page, from, target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "this is not a URL", nil // the page is wrong, not the check
	}
	if u.Scheme != "" || u.Host != "" {
		return "", nil
	}
	if strings.HasPrefix(u.Path, "/") {
		return "a link within the checkout is relative", nil
	}
	name := from
	if u.Path != "" {
		name = path.Join(path.Dir(from), u.Path)
	}
	if !fs.ValidPath(name) {
		return "it leads out of the checkout", nil
	}
	if _, err := fs.Stat(files, name); errors.Is(err, fs.ErrNotExist) {
		return "there is no " + name, nil
	} else if err != nil {
		return "", err
	}
	if u.Fragment == "" {
		return "", nil
	}
	p, ok := pages[name]
	if !ok {
		return "only a page has headings", nil
	}
	if !slices.Contains(p.anchors, u.Fragment) {
		return name + " has no such heading", nil
	}
	return "", nil
}
