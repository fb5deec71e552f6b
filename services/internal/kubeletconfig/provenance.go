package kubeletconfig

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// provenance says for each explicitly set field, by its path, or flag, by its name with dashes, where it was set.
type provenance map[string]string

// replace notes that field has its value from source alone.
func (p provenance) replace(field, source string) {
	if was, ok := p[field]; ok && field == "featureGates" && was != source {
		p[field] = was + " + " + source
		return
	}
	p[field] = source
}

// of returns the source of field, or of the nearest field above or below it.
func (p provenance) of(field string) string {
	for path := field; path != ""; path = parentPath(path) {
		if source, ok := p[path]; ok {
			return source
		}
	}
	for _, path := range slices.Sorted(maps.Keys(p)) {
		if strings.HasPrefix(path, field+".") {
			return p[path]
		}
	}
	return ""
}

func parentPath(path string) string {
	i := strings.LastIndexAny(path, ".[")
	if i < 0 {
		return ""
	}
	return path[:i]
}

// merge notes what one file sets. A null takes a setting back.
func (p provenance) merge(object map[string]any, source string) {
	p.mergeAt("", object, reflect.TypeFor[kc](), source)
}

func (p provenance) mergeAt(prefix string, object map[string]any, t reflect.Type, source string) {
	fields := jsonFields(t)
	for key, v := range object {
		field, known := fields[key]
		if !known || key == "kind" || key == "apiVersion" {
			continue
		}
		path := prefix + key
		if v == nil {
			maps.DeleteFunc(p, func(set, _ string) bool { return set == path || strings.HasPrefix(set, path+".") })
			continue
		}
		child, isObject := v.(map[string]any)
		switch inner := jsonFields(field); {
		case isObject && inner != nil:
			p.mergeAt(path+".", child, field, source)
		case isObject && p[path] != "" && p[path] != source:
			p[path] += " + " + source // a map is merged key by key
		default:
			p[path] = source
		}
	}
}

// takeZerosBack notes where the default holds because the file says 0, as kubeadm's says of many durations: the API
// does not distinguish such a 0 from a field that is left out. given is what the file sets, effective what it comes to.
func (p provenance) takeZerosBack(given, effective map[string]any, source string) {
	for path, from := range p {
		zero := at(given, path)
		if from == source && isZero(zero) && !isZero(at(effective, path)) {
			p[path] = fmt.Sprintf("default (%v in %s)", zero, source)
		}
	}
}

// isZero reports whether a decoded value is a number or a duration of 0.
func isZero(value any) bool {
	d, err := time.ParseDuration(fmt.Sprint(value))
	return err == nil && d == 0
}

// jsonFields returns the fields of a struct, or of what a pointer to one points at, by their JSON names; nil for a type
// that decodes by itself (a duration, a quantity) and for what is no struct.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || decodesItself(t) {
		return nil
	}
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported():
		case name == "" && (f.Anonymous || options == "inline"):
			maps.Copy(fields, jsonFields(f.Type))
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
	return fields
}

func decodesItself(t reflect.Type) bool {
	_, has := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	return has
}
