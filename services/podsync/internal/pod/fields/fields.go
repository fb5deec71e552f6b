// Package fields determines which fields of a pod's spec this node does not support.
//
// A field is supported here, meant for another component, or unsupported. The table lists the supported fields, so a
// field that the API gains later is refused and not ignored.
package fields

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// UnsupportedError is the error of a pod that asks for what is not built.
type UnsupportedError struct {
	// Fields are the paths that nothing supports, as "spec.containers[0].lifecycle".
	Fields []string
}

// maxNamed bounds the error: a pod can ask for any number of resources.
const maxNamed = 10

func (e *UnsupportedError) Error() string {
	named, more := e.Fields, ""
	if len(named) > maxNamed {
		named, more = named[:maxNamed], fmt.Sprintf(" and %d more", len(named)-maxNamed)
	}
	text := "this node agent does not support " + strings.Join(named, ", ") + more +
		" yet: remove it from the pod, or run the pod on another node"
	for _, f := range named {
		kind := f[strings.LastIndex(f, ".")+1:]
		if instead := Instead(kind); instead != "" && strings.HasPrefix(f, "spec.volumes[") {
			text += fmt.Sprintf("; instead of %s use %s", kind, instead)
		}
	}
	return text
}

// Only reports whether nothing but this field, or what is in it, is refused.
func (e *UnsupportedError) Only(path string) bool {
	for _, f := range e.Fields {
		if !within(f, path) {
			return false
		}
	}
	return true
}

// Names reports whether this field, or what is in it, is refused.
func (e *UnsupportedError) Names(path string) bool {
	return slices.ContainsFunc(e.Fields, func(f string) bool { return within(f, path) })
}

func within(field, path string) bool {
	return field == path || strings.HasPrefix(field, path+"[") || strings.HasPrefix(field, path+".")
}

// Check returns an *UnsupportedError that names each field that p sets and nothing here supports, or nil.
//
// gated are fields that are supported because a feature gate is on.
func Check(p *v1.Pod, gated ...string) error {
	w := walker{gated: gated}
	w.walk("spec", "spec", reflect.ValueOf(p.Spec))
	w.refused = append(w.refused, claimed(p)...)
	if len(w.refused) == 0 {
		return nil
	}
	sort.Strings(w.refused)
	return &UnsupportedError{Fields: w.refused}
}

// claimed are the extended resources of a pod that the scheduler has claimed from drivers (KEP-5004): no device plugin
// offers them.
func claimed(p *v1.Pod) (refused []string) {
	if p.Status.ExtendedResourceClaimStatus == nil {
		return nil
	}
	lists := map[string][]v1.Container{
		"spec.initContainers": p.Spec.InitContainers, "spec.containers": p.Spec.Containers,
	}
	for _, r := range p.Status.ExtendedResourceClaimStatus.RequestMappings {
		for list, containers := range lists {
			for i := range containers {
				_, has := containers[i].Resources.Limits[v1.ResourceName(r.ResourceName)]
				if has && containers[i].Name == r.ContainerName {
					refused = append(refused, fmt.Sprintf("%s[%d].resources.limits[%s]", list, i, r.ResourceName))
				}
			}
		}
	}
	return refused
}

type walker struct {
	refused, gated []string
}

// walk descends into what is set. shape is the path without indices, the key of the
// table; path is what the message names.
func (w *walker) walk(path, shape string, v reflect.Value) {
	if v.IsZero() {
		return
	}
	if slices.Contains(w.gated, shape) {
		return
	}
	if rule, known := rules[shape]; known {
		if rule != nil {
			for _, rest := range rule(v) {
				w.refused = append(w.refused, path+rest)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.Elem().Kind() != reflect.Struct { // it is set, to 0 too
			w.refused = append(w.refused, path)
			return
		}
		w.walk(path, shape, v.Elem())
	case reflect.Struct:
		if !hasRuleBelow(shape) {
			w.refused = append(w.refused, path)
			return
		}
		for i := range v.NumField() {
			name, inline := jsonName(v.Type().Field(i))
			if inline {
				w.walk(path, shape, v.Field(i))
				continue
			}
			w.walk(path+"."+name, alike(shape+"."+name), v.Field(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Struct || !hasRuleBelow(shape) {
			w.refused = append(w.refused, path)
			return
		}
		for i := range v.Len() {
			w.walk(fmt.Sprintf("%s[%d]", path, i), shape, v.Index(i))
		}
	default:
		w.refused = append(w.refused, path)
	}
}

// alike gives init and ephemeral containers the rules of containers.
func alike(shape string) string {
	if shape == "spec.initContainers" || shape == "spec.ephemeralContainers" {
		return "spec.containers"
	}
	return shape
}

// hasRuleBelow reports whether the table knows something inside of shape.
func hasRuleBelow(shape string) bool {
	for known := range rules {
		if strings.HasPrefix(known, shape+".") {
			return true
		}
	}
	return false
}

func jsonName(f reflect.StructField) (name string, inline bool) {
	name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
	return name, f.Anonymous && name == ""
}
