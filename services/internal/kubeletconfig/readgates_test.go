package kubeletconfig

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// literals are the strings in the programs of the services that are names of feature gates, each with its files. The
// lists of gates are left out.
func literals(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && (v.Names[0].Name == "readGates" || v.Names[0].Name == "refusedGates") {
				return false
			}
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil && knownGates()[text].Name != "" {
					found[text] = append(found[text], path)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestReadGatesAreThoseThatAreRead: a gate that a service asks for is in the list, or its user gets a warning that
// nothing reads it. A gate that no service asks for any more is not in the list.
func TestReadGatesAreThoseThatAreRead(t *testing.T) {
	read := literals(t)
	for _, gate := range slices.Sorted(maps.Keys(read)) {
		if !readGates[gate] {
			t.Errorf("gate %s is read in %v and not in readGates", gate, read[gate])
		}
	}
	for _, gate := range slices.Sorted(maps.Keys(readGates)) {
		if len(read[gate]) == 0 && !allGates(gate) {
			t.Errorf("gate %s is in readGates, and nothing reads it", gate)
		}
	}
}

// TestAGateThatIsNotListedIsNotAsked: a name that is no literal is found when it is asked for.
func TestAGateThatIsNotListedIsNotAsked(t *testing.T) {
	unread := slices.IndexFunc(slices.Sorted(maps.Keys(knownGates())), func(name string) bool { return !readGates[name] })
	name := slices.Sorted(maps.Keys(knownGates()))[unread]
	defer func() {
		if recover() == nil {
			t.Errorf("gate %s was asked for, and is not in readGates", name)
		}
	}()
	(&Config{}).FeatureEnabled(name)
}
