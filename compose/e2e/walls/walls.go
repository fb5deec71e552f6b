package walls

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

const (
	module   = "github.com/microlet/microlet/"
	services = module + "services/"
)

// Package is what "go list -json" prints about a package.
type Package struct {
	ImportPath   string
	Name         string
	Imports      []string
	Deps         []string
	TestImports  []string
	XTestImports []string
}

// wall is a rule on imports.
type wall struct {
	// imports reports whether the rule is about this import.
	imports func(path string) bool
	// within are the importers to which the rule applies; all of the project's if nil.
	within func(importer string) bool
	// allowed are the importers that may.
	allowed func(importer string) bool
	// tests: the rule holds for test files too.
	tests  bool
	reason string
}

// below reports whether a package is this one or below it.
func below(roots ...string) func(string) bool {
	return func(path string) bool {
		return slices.ContainsFunc(roots,
			func(root string) bool { return path == root || strings.HasPrefix(path, root+"/") })
	}
}

func none(string) bool { return false }

// walls are all rules.
var walls = []wall{
	{
		imports: below("k8s.io/kubernetes"), allowed: none, tests: true,
		reason: "the product is built from published libraries; k8s.io/kubernetes is only for the programs of the rig " +
			"(compose/tools)",
	},
	{
		imports: func(p string) bool {
			return below("k8s.io/cri-client/pkg")(p) && !below("k8s.io/cri-client/pkg/logs")(p)
		},
		within: below(strings.TrimSuffix(services, "/")), allowed: below(services + "podsync"),
		reason: "podsync alone opens the runtime's socket; others use the CRI gateway",
	},
	{
		imports: below("k8s.io/cri-client/pkg/logs"),
		within:  below(strings.TrimSuffix(services, "/")), allowed: below(services+"podsync", services+"nodeapi"),
		reason: "podsync writes the containers' logs and nodeapi reads them",
	},
	{
		imports: below("k8s.io/client-go/kubernetes"),
		within:  below(strings.TrimSuffix(services, "/"), module+"proto"),
		allowed: below(services+"podsync", services+"nodestatus"),
		reason:  "podsync and nodestatus alone have API credentials",
	},
	{
		imports: below("github.com/pkg/errors"), allowed: none, tests: true,
		reason: "the standard library wraps errors",
	},
	{
		imports: below(strings.TrimSuffix(services, "/")),
		within:  below(module+"proto", module+"compose"),
		allowed: none,
		tests:   true,
		reason:  "the contract and the rig know the services from outside only",
	},
}

// service returns the name of the service that a package belongs to; empty for others.
func service(path string) string {
	rest, ok := strings.CutPrefix(path, services)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// foreign reports whether a package of one service imports another service's: they meet on the bus, on
// sockets and in the binary, nowhere else.
func foreign(importer, imported string) bool {
	from, to := service(importer), service(imported)
	return from != "" && to != "" && from != to && to != "internal" && from != "microlet"
}

// Violations returns each import that breaks a wall.
func Violations(packages []Package) []string {
	var found []string
	for _, p := range packages {
		for _, i := range p.Imports {
			if foreign(p.ImportPath, i) {
				found = append(found,
					fmt.Sprintf("%s imports %s: services meet only through the contract", p.ImportPath, i))
			}
		}
		for _, w := range walls {
			if w.within != nil && !w.within(p.ImportPath) || w.allowed(p.ImportPath) {
				continue
			}
			imports := p.Imports
			if w.tests {
				imports = slices.Concat(imports, p.TestImports, p.XTestImports)
			}
			for _, i := range imports {
				if w.imports(i) {
					found = append(found, fmt.Sprintf("%s imports %s: %s", p.ImportPath, i, w.reason))
				}
			}
		}
	}
	return found
}

// List asks go for the packages that match the patterns, in the folder.
func List(ctx context.Context, dir string, args ...string) ([]Package, error) {
	cmd := exec.CommandContext(ctx, "go",
		append([]string{"list", "-e", "-json=ImportPath,Name,Imports,Deps,TestImports,XTestImports"}, args...)...)
	cmd.Dir = dir
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, problems.String())
	}
	var packages []Package
	for d := json.NewDecoder(&out); ; {
		var p Package
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read go list's answer: %w", err)
		}
		packages = append(packages, p)
	}
}
