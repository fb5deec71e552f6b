package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// metric is one that a source defines.
type metric struct {
	Name, Type, Help string
	Labels           []string
	Service          string // the folder below services/, or empty for what services share
	Position         token.Position
}

// types are those of the options of client_golang.
var types = map[string]string{
	"CounterOpts": "counter", "GaugeOpts": "gauge", "HistogramOpts": "histogram", "SummaryOpts": "summary",
}

// find returns the metrics of all packages below the folder, sorted by name.
func find(folder string) ([]metric, error) {
	packages := map[string][]string{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "test" || d.Name() == "testing"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []metric
	var problems []error
	for dir, files := range packages {
		found, err := inPackage(files)
		problems = append(problems, err)
		for i := range found {
			found[i].Service = service(folder, dir)
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b metric) int {
		return strings.Compare(a.Name+"\x00"+a.Service, b.Name+"\x00"+b.Service)
	})
	all = slices.CompactFunc(all, func(a, b metric) bool { return a.Name == b.Name && a.Service == b.Service })
	return all, errors.Join(problems...)
}

// service is the folder below services/ that a package is of, or empty for what services share.
func service(folder, dir string) string {
	rel, err := filepath.Rel(folder, dir)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
	if first == "internal" {
		return ""
	}
	return first
}

// inPackage returns the metrics of one package.
func inPackage(files []string) (found []metric, err error) {
	set := token.NewFileSet()
	constants := map[string]ast.Expr{}
	var trees []*ast.File
	for _, file := range files {
		tree, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		trees = append(trees, tree)
		collectConstants(tree, constants)
	}
	p := pkg{set: set, values: constants, labels: map[string][]ast.Expr{}, helpers: map[string]helper{}}
	for _, tree := range trees {
		ast.Inspect(tree, p.visit)
	}
	return p.found, errors.Join(p.problems...)
}

// collectConstants notes the constants of a file, those of functions included.
func collectConstants(tree *ast.File, into map[string]ast.Expr) {
	ast.Inspect(tree, func(n ast.Node) bool {
		g, ok := n.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			return true
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, name := range v.Names {
				if i < len(v.Values) {
					into[name.Name] = v.Values[i]
				}
			}
		}
		return true
	})
}

// helper is a function within another one that makes metrics of the name and help that it is given.
type helper struct {
	params   []string
	variadic bool
	makes    *ast.CallExpr
}

type pkg struct {
	set      *token.FileSet
	values   map[string]ast.Expr // of constants, and of the parameters of a helper that is called
	labels   map[string][]ast.Expr
	helpers  map[string]helper
	found    []metric
	problems []error
}

// visit looks for metrics, and does not look into helpers before they are called.
func (p *pkg) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		name, h, ok := asHelper(n)
		if ok {
			p.helpers[name] = h
			return false
		}
		p.noteLabels(n)
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && p.helpers[f.Name].makes != nil {
			p.callHelper(p.helpers[f.Name], n)
		} else if makesMetric(n) {
			p.metric(n, p.set.Position(n.Pos()))
		}
	}
	return true
}

// noteLabels notes labels to which a statement gives a name.
func (p *pkg) noteLabels(a *ast.AssignStmt) {
	if len(a.Lhs) != 1 || len(a.Rhs) != 1 {
		return
	}
	id, isName := a.Lhs[0].(*ast.Ident)
	list, isList := a.Rhs[0].(*ast.CompositeLit)
	if !isName || !isList {
		return
	}
	if _, ok := list.Type.(*ast.ArrayType); ok {
		p.labels[id.Name] = list.Elts
	}
}

// asHelper reports whether the statement gives a name to a function that makes a metric.
func asHelper(a *ast.AssignStmt) (name string, h helper, ok bool) {
	if len(a.Lhs) != 1 || len(a.Rhs) != 1 {
		return "", helper{}, false
	}
	id, isName := a.Lhs[0].(*ast.Ident)
	f, isFunc := a.Rhs[0].(*ast.FuncLit)
	if !isName || !isFunc {
		return "", helper{}, false
	}
	for _, field := range f.Type.Params.List {
		for _, param := range field.Names {
			h.params = append(h.params, param.Name)
		}
		_, h.variadic = field.Type.(*ast.Ellipsis)
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && makesMetric(call) {
			h.makes = call
		}
		return true
	})
	return id.Name, h, h.makes != nil && len(h.params) > 0
}

// callHelper evaluates what the helper makes with the arguments of a call.
func (p *pkg) callHelper(h helper, call *ast.CallExpr) {
	outer, outerLabels := p.values, p.labels
	p.values, p.labels = maps.Clone(outer), maps.Clone(outerLabels)
	for i, name := range h.params {
		switch {
		case h.variadic && i == len(h.params)-1:
			p.labels[name] = call.Args[i:]
		case i < len(call.Args):
			p.values[name] = call.Args[i]
		}
	}
	p.metric(h.makes, p.set.Position(call.Pos()))
	p.values, p.labels = outer, outerLabels
}

// makesMetric reports whether the first argument of a call are the options of a metric.
func makesMetric(call *ast.CallExpr) bool {
	if len(call.Args) == 0 {
		return false
	}
	options, ok := call.Args[0].(*ast.CompositeLit)
	if !ok {
		return false
	}
	of, ok := options.Type.(*ast.SelectorExpr)
	return ok && types[of.Sel.Name] != ""
}

// metric notes what a call makes.
func (p *pkg) metric(call *ast.CallExpr, at token.Position) {
	options := call.Args[0].(*ast.CompositeLit)
	m := metric{Type: types[options.Type.(*ast.SelectorExpr).Sel.Name], Position: at}
	var parts [3]string
	for _, e := range options.Elts {
		field, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch field.Key.(*ast.Ident).Name {
		case "Namespace":
			parts[0] = p.text(field.Value)
		case "Subsystem":
			parts[1] = p.text(field.Value)
		case "Name":
			parts[2] = p.text(field.Value)
		case "Help":
			m.Help = p.text(field.Value)
		case "ConstLabels":
			m.Labels = append(m.Labels, p.keys(field.Value)...)
		}
	}
	named := parts[2] != ""
	m.Name = strings.Join(slices.DeleteFunc(parts[:], func(part string) bool { return part == "" }), "_")
	if made, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasSuffix(made.Sel.Name, "Vec") && len(call.Args) > 1 {
		m.Labels = append(m.Labels, p.list(call.Args[1])...)
	}
	if !named || m.Help == "" {
		p.problems = append(p.problems, fmt.Errorf("%s: a metric needs a Name and a Help", m.Position))
	}
	p.found = append(p.found, m)
}

// list returns the labels of a vector.
func (p *pkg) list(e ast.Expr) (names []string) {
	elements := []ast.Expr{}
	switch e := e.(type) {
	case *ast.CompositeLit:
		elements = e.Elts
	case *ast.Ident:
		labels, ok := p.labels[e.Name]
		if !ok {
			p.problems = append(p.problems, fmt.Errorf("%s: use a list of labels of this function", p.set.Position(e.Pos())))
		}
		elements = labels
	}
	for _, e := range elements {
		names = append(names, p.text(e))
	}
	return names
}

func (p *pkg) keys(e ast.Expr) (names []string) {
	if labels, ok := e.(*ast.CompositeLit); ok {
		for _, l := range labels.Elts {
			if pair, ok := l.(*ast.KeyValueExpr); ok {
				names = append(names, p.text(pair.Key))
			}
		}
	}
	return names
}

// text is the value of a constant string. One that only a running program knows is a fault.
func (p *pkg) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return text
		}
	case *ast.BinaryExpr:
		return p.text(e.X) + p.text(e.Y)
	case *ast.Ident:
		if value, ok := p.values[e.Name]; ok {
			return p.text(value)
		}
	}
	p.problems = append(p.problems, fmt.Errorf("%s: use a literal or a constant of this package", p.set.Position(e.Pos())))
	return ""
}
