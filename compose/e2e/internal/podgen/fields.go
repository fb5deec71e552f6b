package podgen

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Fields are the paths of the spec's fields that any of the pods sets, as they are spelled in YAML, without
// indexes: spec.containers.env.valueFrom. A path that leads to others that are set is among them.
func Fields(pods ...*corev1.Pod) []string {
	set := map[string]bool{}
	for _, p := range pods {
		walk(reflect.ValueOf(p.Spec), "spec", set)
	}
	return slices.Sorted(maps.Keys(set))
}

func walk(v reflect.Value, path string, set map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			set[path] = true
			walk(v.Elem(), path, set)
		}
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			return
		}
		set[path] = true
		if v.Kind() == reflect.Slice {
			for i := range v.Len() {
				walk(v.Index(i), path, set)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported():
			case f.Anonymous && (name == "" || strings.Contains(options, "inline")):
				walk(v.Field(i), path, set)
			case !v.Field(i).IsZero():
				set[path+"."+name] = true
				walk(v.Field(i), path+"."+name, set)
			}
		}
	default:
		if !v.IsZero() {
			set[path] = true
		}
	}
}
