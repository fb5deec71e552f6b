package fields

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/microlet/microlet/services/internal/testing/golden"
)

// The page of fields is what Check answers to a pod that sets one field, and nothing else.
func TestPageOfFields(t *testing.T) {
	golden.Check(t, "../../../../../docs/pod-fields.md", page())
}

func page() string {
	var b strings.Builder
	b.WriteString(`# Pod fields

This page lists every field of a pod's ` + "`spec`" +
		` by what this node does with it. The names are those of the API. A test
generates the page: it checks a pod that sets only this field with podsync's own code, so the page cannot be out of
date. The fields of ` + "`containers`" +
		` also apply to init and ephemeral containers. Fields whose feature gate is off are listed
under Refused. [compatibility.md](compatibility.md) says how each feature behaves.
`)
	lists := byFate(leaves(reflect.TypeFor[v1.PodSpec](), "spec", nil))
	for _, section := range []struct{ fate, title, text string }{
		{supportedHere, "Supported", "The comparison with the kubelet " +
			"([testing.md](testing.md#comparison-with-the-kubelet)) covers each of these fields. Its\n" +
			"generator lists a few exceptions, each with its reason."},
		{forOthers, "For other components", "These fields are for the scheduler, the controllers, admission in the API " +
			"server, or nodes with Windows. This node\n" +
			"accepts them and has nothing to do."},
		{refused, "Refused", "A pod that sets one of these fields is not started, and its status names the field. A field " +
			"that is supported with some\n" +
			"of its values only is listed here. [compatibility.md](compatibility.md#a-pod-that-uses-an-unsupported-field) " +
			"says which\nvalues."},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", section.title, section.text)
		for _, path := range lists[section.fate] {
			fmt.Fprintf(&b, "* `%s`\n", path)
		}
	}
	return b.String()
}

// byFate sorts the fields by their fate. Where all that is in a field has one, and it is not that of being
// supported, the field stands for it.
func byFate(all []leaf) map[string][]string {
	fates := map[string]map[string]bool{} // of a path and of all above it
	for _, l := range all {
		for path := l.path; path != ""; path, _ = cutLast(path) {
			if fates[path] == nil {
				fates[path] = map[string]bool{}
			}
			fates[path][l.fate()] = true
		}
	}
	lists := map[string]map[string]bool{supportedHere: {}, forOthers: {}, refused: {}}
	for _, l := range all {
		path, fate := l.path, l.fate()
		for up, ok := cutLast(path); ok && fate != supportedHere && len(fates[up]) == 1; up, ok = cutLast(path) {
			path = up
		}
		lists[fate][path] = true
	}
	sorted := map[string][]string{}
	for fate, paths := range lists {
		sorted[fate] = slices.Sorted(maps.Keys(paths))
	}
	return sorted
}

// cutLast cuts off the last part of a path.
func cutLast(path string) (string, bool) {
	i := strings.LastIndex(path, ".")
	return path[:max(i, 0)], i >= 0
}

const supportedHere, forOthers, refused = "supported", "for others", "refused"

// leaf is a field with nothing below it.
type leaf struct {
	path string
	// set sets it, and what it is in, in a spec.
	set func(spec reflect.Value)
}

func (l leaf) fate() string {
	p := &v1.Pod{}
	l.set(reflect.ValueOf(&p.Spec).Elem())
	if Check(p) != nil {
		return refused
	}
	for field := range notTheNodes {
		if within(l.path, field) {
			return forOthers
		}
	}
	return supportedHere
}

var samples = map[reflect.Type]any{
	reflect.TypeFor[resource.Quantity]():    resource.MustParse("1"),
	reflect.TypeFor[v1.ResourceList]():      v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
	reflect.TypeFor[intstr.IntOrString]():   intstr.FromInt32(1),
	reflect.TypeFor[metav1.ObjectMeta]():    metav1.ObjectMeta{Name: "a"},
	reflect.TypeFor[metav1.LabelSelector](): metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
}

// leaves are the fields of a type; set makes a value of the outer type and returns the place in it.
func leaves(t reflect.Type, path string, reach func(reflect.Value) reflect.Value) []leaf {
	if reach == nil {
		reach = func(v reflect.Value) reflect.Value { return v }
	}
	if sample, ok := samples[t]; ok {
		return []leaf{{path, func(v reflect.Value) { reach(v).Set(reflect.ValueOf(sample)) }}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return leaves(t.Elem(), path, func(v reflect.Value) reflect.Value {
			p := reach(v)
			p.Set(reflect.New(t.Elem()))
			return p.Elem()
		})
	case reflect.Slice:
		return leaves(t.Elem(), path, func(v reflect.Value) reflect.Value {
			list := reach(v)
			list.Set(reflect.MakeSlice(t, 1, 1))
			return list.Index(0)
		})
	case reflect.Struct:
		var all []leaf
		for i := range t.NumField() {
			name, inline := jsonName(t.Field(i))
			below := path + "." + name
			if inline {
				below = path
			}
			if below == "spec.initContainers" || below == "spec.ephemeralContainers" {
				continue // alike
			}
			all = append(all,
				leaves(t.Field(i).Type, below, func(v reflect.Value) reflect.Value { return reach(v).Field(i) })...)
		}
		if len(all) == 0 { // an empty struct says all by being there
			all = []leaf{{path, func(v reflect.Value) { reach(v) }}}
		}
		return all
	case reflect.Map:
		return []leaf{{path, func(v reflect.Value) {
			m := reflect.MakeMap(t)
			m.SetMapIndex(reflect.ValueOf("a").Convert(t.Key()), reflect.Zero(t.Elem()))
			reach(v).Set(m)
		}}}
	case reflect.Bool:
		return []leaf{{path, func(v reflect.Value) { reach(v).SetBool(true) }}}
	case reflect.String:
		return []leaf{{path, func(v reflect.Value) { reach(v).SetString("a") }}}
	case reflect.Int32, reflect.Int64:
		return []leaf{{path, func(v reflect.Value) { reach(v).SetInt(1) }}}
	default:
		panic(fmt.Sprintf("%s is a %s, for which there is no sample", path, t))
	}
}

func TestLeavesKnowEveryField(t *testing.T) {
	paths := map[string]bool{}
	for _, l := range leaves(reflect.TypeFor[v1.PodSpec](), "spec", nil) {
		if paths[l.path] {
			t.Errorf("%s is there twice", l.path)
		}
		paths[l.path] = true
		p := &v1.Pod{}
		l.set(reflect.ValueOf(&p.Spec).Elem())
		if reflect.DeepEqual(p, &v1.Pod{}) {
			t.Errorf("%s sets nothing", l.path)
		}
	}
	for _, want := range []string{"spec.nodeName", "spec.containers.env.valueFrom.fieldRef.fieldPath",
		"spec.volumes.emptyDir.sizeLimit", "spec.containers.resources.limits"} {
		if !paths[want] {
			t.Errorf("no %s among %v", want, slices.Sorted(maps.Keys(paths)))
		}
	}
}
