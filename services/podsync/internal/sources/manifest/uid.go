package manifest

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// uid is the UID of a pod that brings none: what the kubelet makes of the same manifest in the same place.
func uid(p *v1.Pod, from Origin) types.UID {
	h := fnv.New128a()
	fmt.Fprint(h, internalDump(p))
	if from.Path != "" {
		fmt.Fprintf(h, "host:%s", from.NodeName)
		fmt.Fprintf(h, "file:%s", from.Path)
	} else {
		fmt.Fprintf(h, "url:%s", from.URL)
	}
	return types.UID(hex.EncodeToString(h.Sum(nil)))
}

// mark cannot be part of a string of a decoded manifest: it is not UTF-8.
const mark = "\xff"

// versioned is the package of the public types in a dump, internal the kubelet's.
const versioned, internal = "v1.", "core."

// coreTypes are the names of the types of core/v1 that a pod is made of. The package of metadata has the same name in
// a dump, so the names show which type is which.
var coreTypes = sync.OnceValue(func() map[string]bool { return typeNames(reflect.TypeFor[v1.Pod]()) })

// internalDump is the dump of a pod as the kubelet makes it. The kubelet dumps its internal type, which has the same
// fields in the same order, and another package name; the dump shows types by name and strings without quotes. So
// every "v1." that is text is marked, "v1." of the types is renamed, and the marks are taken off again. A mark follows
// the text, which leaves map keys in their order.
func internalDump(p *v1.Pod) string {
	p = p.DeepCopy()
	markText(reflect.ValueOf(p).Elem())
	text, names := dump.ForHash(p), coreTypes()
	var out strings.Builder
	out.Grow(len(text))
	for {
		before, after, found := strings.Cut(text, versioned)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		text = after
		switch end := strings.IndexFunc(after, notLetter); {
		case strings.HasPrefix(after, mark):
			out.WriteString(versioned)
			text = after[len(mark):]
		case end > 0 && names[after[:end]]:
			out.WriteString(internal)
		default:
			out.WriteString(versioned)
		}
	}
}

func notLetter(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

func markedText(s string) string { return strings.ReplaceAll(s, versioned, versioned+mark) }

// markText marks the strings that v holds.
func markText(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() && strings.Contains(v.String(), versioned) {
			v.SetString(markedText(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			markText(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				markText(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			markText(v.Index(i))
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return
		}
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			markText(value)
			v.SetMapIndex(key, reflect.Value{})
			v.SetMapIndex(reflect.ValueOf(markedText(key.String())).Convert(v.Type().Key()), value)
		}
	}
}

// typeNames are the names of the types of core/v1 below t.
func typeNames(t reflect.Type) map[string]bool {
	names, seen, core := map[string]bool{}, map[reflect.Type]bool{}, t.PkgPath()
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		if seen[t] {
			return
		}
		seen[t] = true
		if t.PkgPath() == core {
			names[t.Name()] = true
		}
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(t.Elem())
		case reflect.Map:
			walk(t.Key())
			walk(t.Elem())
		case reflect.Struct:
			for i := range t.NumField() {
				walk(t.Field(i).Type)
			}
		}
	}
	walk(t)
	return names
}
