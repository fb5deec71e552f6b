package catalog

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// readByMethods are the fields that the configuration's own methods read.
var readByMethods = map[string][]string{
	"Standalone":       {"node.kubeconfig"},
	"NodeIPs":          {"node.nodeIP"},
	"NodeName":         {"node.hostnameOverride"},
	"FeatureEnabled":   {"featureGates"},
	"DeclaredFeatures": {"featureGates"},
	"ExternalCloud":    {"node.cloudProvider"},
	"Reserved":         {"kubeReserved", "reservedSystemCPUs", "systemReserved"},
	"DelaysShutdown":   {"shutdownGracePeriod", "shutdownGracePeriodByPodPriority"},
}

// names are the names in Go of a struct's fields, to those in JSON.
func names(of any, prefix string) map[string]string {
	found := map[string]string{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			found[f.Name] = prefix + name
		}
	}
	return found
}

// TestKubeletFields reads the source of each service that gets a part of the kubelet's configuration: a field that it
// reads and does not get would have its default, whatever the operator set.
func TestKubeletFields(t *testing.T) {
	some := false
	for _, s := range Services() {
		if s.KubeletFields == nil {
			continue
		}
		some = true
		want := slices.Clone(s.KubeletFields)
		got := slices.Concat(service.KubeletFields(), fieldsRead(t, filepath.Join("../../..", string(s.Role))))
		for _, list := range []*[]string{&want, &got} {
			slices.Sort(*list)
			*list = slices.Compact(*list)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s reads the fields %q and gets %q", s.Role, got, want)
		}
	}
	if !some {
		t.Error("every service gets all of the configuration")
	}
}

// fieldsRead finds the fields that the source below dir reads of a kubeletconfig.Config, which it calls Kubelet or k.
func fieldsRead(t *testing.T, dir string) []string {
	t.Helper()
	kubelet, node := names(kubeletv1beta1.KubeletConfiguration{}, ""), names(kubeletconfig.NodeFlags{}, "node.")
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(source.Imports,
			func(i *ast.ImportSpec) bool { return strings.HasSuffix(i.Path.Value, "/kubeletconfig\"") }) &&
			filepath.Dir(path) != dir {
			return nil
		}
		ast.Inspect(source, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := sel.Sel.Name
			switch last(sel.X) {
			case "Kubelet": // c.Kubelet is the configuration, or its part of this name
				if method, is := readByMethods[name]; is {
					found = append(found, method...)
				} else if field, is := kubelet[name]; is {
					found = append(found, field)
				} else if name != "Kubelet" && name != "Node" {
					t.Errorf("%s: %s of the configuration is not known to this test", path, name)
				}
			case "k":
				if method, is := readByMethods[name]; is {
					found = append(found, method...)
				} else if name != "Kubelet" && name != "Node" {
					t.Errorf("%s: k.%s is not known to this test", path, name)
				}
			case "Node":
				if field, is := node[name]; is {
					found = append(found, field)
				}
			}
			return true
		})
		ast.Inspect(source,
			func(n ast.Node) bool { // no code takes a part as a whole, in which this test would not find what is read
				switch n := n.(type) {
				case *ast.AssignStmt:
					for _, value := range n.Rhs {
						if sel, ok := value.(*ast.SelectorExpr); ok &&
							(sel.Sel.Name == "Kubelet" || sel.Sel.Name == "Node") && last(sel.X) == "Kubelet" {
							t.Errorf("%s: the part %s of the configuration is read as a whole", path, sel.Sel.Name)
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
	return found
}

// last is the last name of x.y.z.
func last(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}
