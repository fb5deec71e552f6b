package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// misfit says what a decoder found wrong with a document: field, value and what would be right.
func misfit(err error, document []byte) error {
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		var all []string
		for _, e := range strict.Errors() {
			all = append(all, e.Error())
		}
		return fmt.Errorf("%s: correct the name, or remove it", strings.Join(all, ", "))
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("%s is %s: write %s", fieldPath(wrong.Field), withArticle(wrong.Value), expected(wrong.Type))
	}
	var object any
	if json.Unmarshal(document, &object) == nil {
		if path, value := badQuantity(object, ""); path != "" {
			return fmt.Errorf("%s is %q: write a quantity, such as 100m or 64Mi", path, value)
		}
	}
	return fmt.Errorf("%w: correct the value", err)
}

// fieldPath is a path as the manifest has it: without the names of Go types, which begin with a capital.
func fieldPath(path string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(path, "."), func(name string) bool {
		return name == "" || unicode.IsUpper(rune(name[0]))
	}), ".")
}

// withArticle puts a decoder's name of a value into a sentence, such as "object" or "number 99999999999".
func withArticle(value string) string {
	kind, literal, _ := strings.Cut(value, " ")
	switch {
	case literal != "":
		return literal
	case kind == "bool":
		return "true or false"
	case kind == "array":
		return "a list"
	case kind == "object":
		return "an object"
	}
	return "a " + kind
}

// expected says what a field of a type takes.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string, in quotes if it looks like a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Int32:
		return "a whole number up to 2147483647"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Pointer:
		return expected(t.Elem())
	default:
		return "an object"
	}
}

// quantities are the fields with values that are quantities, or objects of them.
var quantities = []string{"limits", "requests", "overhead", "sizeLimit", "divisor"}

// badQuantity finds the first value that should be a quantity and is none. The decoder does not say where it is.
func badQuantity(value any, path string) (at, text string) {
	switch value := value.(type) {
	case []any:
		for i, item := range value {
			if at, text = badQuantity(item, fmt.Sprintf("%s[%d]", path, i)); at != "" {
				return at, text
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			inside := strings.TrimPrefix(path+"."+key, ".")
			if slices.Contains(quantities, key) {
				at, text = notQuantity(value[key], inside)
			} else {
				at, text = badQuantity(value[key], inside)
			}
			if at != "" {
				return at, text
			}
		}
	}
	return "", ""
}

func notQuantity(value any, path string) (at, text string) {
	if object, ok := value.(map[string]any); ok {
		for _, key := range slices.Sorted(maps.Keys(object)) {
			if at, text = notQuantity(object[key], path+"."+key); at != "" {
				return at, text
			}
		}
		return "", ""
	}
	if value == nil {
		return "", ""
	}
	text = strings.TrimSpace(fmt.Sprint(value))
	if _, err := resource.ParseQuantity(text); err != nil {
		return path, text
	}
	return "", ""
}
