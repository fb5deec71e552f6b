package logkey

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A key of this package is written as its constant everywhere, so that no second spelling of it appears.
func TestSharedKeysAreConstants(t *testing.T) {
	keys := constants(t)
	const services = "../.."
	files := 0
	err := filepath.WalkDir(services, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, arg := range keyArguments(n) {
				if l, ok := arg.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if key, _ := strconv.Unquote(l.Value); keys[key] != "" {
						t.Errorf("%s: the log key %s is logkey.%s", set.Position(l.Pos()), l.Value, keys[key])
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("%d files were read: %s is not the folder of the services", files, services)
	}
}

// constants returns the name of each key's constant.
func constants(t *testing.T) map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "logkey.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for name, object := range file.Scope.Objects {
		spec, ok := object.Decl.(*ast.ValueSpec)
		if !ok {
			continue
		}
		key, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		names[key] = name
	}
	return names
}

// keyArguments returns the keys of a call that logs.
func keyArguments(n ast.Node) []ast.Expr {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	first := len(call.Args)
	switch method.Sel.Name {
	case "With":
		first = 0
	case "Debug", "Info", "Warn", "Error":
		first = 1
	case "DebugContext", "InfoContext", "WarnContext", "ErrorContext":
		first = 2
	case "Log":
		first = 3
	}
	var keys []ast.Expr
	for i := first; i < len(call.Args); i += 2 {
		keys = append(keys, call.Args[i])
	}
	return keys
}
