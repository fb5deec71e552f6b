package kubeletconfig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	apiVersion = "kubelet.config.k8s.io/v1beta1"
	kind       = "KubeletConfiguration"
)

// document is one file, decoded without defaults.
type document struct {
	json   []byte
	object map[string]any
	config kubeletv1beta1.KubeletConfiguration
}

// decode reads one KubeletConfiguration. source is how the file is called in errors, which join all that is wrong. With
// unknown keys, or values of the wrong type, it returns what is left without them, too; a document of another kind, or
// none at all, is nil.
func decode(source string, data []byte) (*document, error) {
	bad := func(field string, value any, detail, remedy string) error {
		return Problem{Field: field, Value: value, Source: source, Detail: detail, Remedy: remedy}
	}
	data, err := onlyDocument(data)
	if err != nil {
		return nil, bad("document", nil, err.Error(), "give exactly one KubeletConfiguration")
	}
	asJSON := data
	if !json.Valid(data) {
		if asJSON, err = yaml.YAMLToJSONStrict(data); err != nil {
			return nil, bad("document", nil, "it is not YAML or JSON, or has a key twice: "+decodeFault(err),
				"correct the file")
		}
	}
	d := &document{json: asJSON}
	var mapping map[string]json.RawMessage
	if err := json.Unmarshal(asJSON, &mapping); err != nil {
		return nil, bad("document", nil, "it holds no mapping of keys to values",
			"start with apiVersion: "+apiVersion+" and kind: "+kind)
	}

	// Read from the document itself: a field of the wrong type must not hide a wrong kind.
	var meta struct{ APIVersion, Kind string }
	var wrong []error
	if err := json.Unmarshal(asJSON, &meta); err == nil {
		if meta.APIVersion != apiVersion {
			wrong = append(wrong, bad("apiVersion", meta.APIVersion, "it is not a known version", "write "+apiVersion))
		}
		if meta.Kind != kind {
			wrong = append(wrong, bad("kind", meta.Kind, "it is not a known kind", "write "+kind))
		}
	}
	if meta.Kind != kind && meta.Kind != "" {
		return nil, errors.Join(wrong...) // its fields are those of something else
	}
	strict, err := kjson.UnmarshalStrict(asJSON, &d.config)
	if err != nil {
		values := locate(source, asJSON, err)
		wrong = append(wrong, values...)
		// The decoder reports unknown keys only where all values fit.
		if rest, err := without(asJSON, values); err == nil {
			strict, _ = kjson.UnmarshalStrict(rest, &d.config)
		}
	}
	for _, problem := range strict {
		wrong = append(wrong, keyProblem(source, problem))
	}
	if d.json, err = without(asJSON, wrong); err != nil || meta.APIVersion != apiVersion || meta.Kind != kind {
		return nil, errors.Join(wrong...)
	}
	d.config = kubeletv1beta1.KubeletConfiguration{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(d.json, &d.config); err != nil {
		return nil, errors.Join(wrong...)
	}
	// kjson keeps whole numbers whole, which encoding/json does not.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(d.json, &d.object); err != nil {
		return nil, bad("document", nil, oneLine(err), "correct the file")
	}
	return d, errors.Join(wrong...)
}

// without returns the document without the values that are wrong.
func without(asJSON []byte, wrong []error) ([]byte, error) {
	if len(wrong) == 0 {
		return asJSON, nil
	}
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(asJSON, &object); err != nil {
		return nil, err
	}
	for _, err := range wrong {
		if p := (Problem{}); errors.As(err, &p) {
			removeAt(object, p.Field)
		}
	}
	return json.Marshal(object)
}

// removeAt removes the value at a path, if there is one.
func removeAt(object map[string]any, path string) {
	key, rest, nested := strings.Cut(path, ".")
	if !nested {
		delete(object, key)
	} else if inner, ok := object[key].(map[string]any); ok {
		removeAt(inner, rest)
	}
}

// onlyDocument refuses a file of several documents, of which a YAML decoder would read the first and drop the rest.
func onlyDocument(data []byte) ([]byte, error) {
	if json.Valid(data) {
		return data, nil
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var found [][]byte
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var content any
		// What cannot be parsed counts: the error comes from the one decoder that reports it well.
		if err := yaml.Unmarshal(doc, &content); err != nil || content != nil {
			found = append(found, doc)
		}
	}
	switch len(found) {
	case 0:
		return nil, errors.New("the file is empty")
	case 1:
		return found[0], nil
	default:
		return nil, fmt.Errorf("the file holds %d documents", len(found))
	}
}

// keyProblem turns the decoder's complaint about a key into one with a remedy.
func keyProblem(source string, err error) error {
	p := Problem{Field: "document", Source: source, Detail: oneLine(err), Remedy: "correct the file"}
	var field interface {
		FieldPath() string
	}
	if !errors.As(err, &field) {
		return p
	}
	p.Field = field.FieldPath()
	if strings.HasPrefix(err.Error(), "duplicate field") {
		p.Detail, p.Remedy = "the key is given twice", "keep one"
		return p
	}
	p.Detail, p.Remedy = "the key is unknown", "remove it"
	siblings := siblingsOf(p.Field)
	name := p.Field[strings.LastIndex(p.Field, ".")+1:]
	if near := nearest(name, slices.Sorted(maps.Keys(siblings))); near != "" {
		p.Remedy = fmt.Sprintf("write %q if that was meant, otherwise remove it", near)
	}
	return p
}

// siblingsOf returns the known keys beside the one at path.
func siblingsOf(path string) map[string]reflect.Type {
	fields := jsonFields(reflect.TypeFor[kc]())
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		name, _, inList := strings.Cut(key, "[")
		t, ok := fields[name]
		if !ok {
			return nil
		}
		if inList && t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		fields = jsonFields(t)
	}
	return fields
}

// locate finds the fields with values that do not decode. The decoder stops at the first, and names none where a type
// decodes itself, such as a duration.
func locate(source string, asJSON []byte, decodeErr error) []error {
	var object map[string]any
	if err := json.Unmarshal(asJSON, &object); err != nil {
		return []error{Problem{Field: "document", Source: source, Detail: oneLine(err), Remedy: "correct the file"}}
	}
	if found := locateIn(source, nil, object, reflect.TypeFor[kc]()); len(found) > 0 {
		return found
	}
	return []error{Problem{Field: "document", Source: source, Detail: oneLine(decodeErr), Remedy: "correct the file"}}
}

func locateIn(source string, path []string, object map[string]any, t reflect.Type) []error {
	var found []error
	fields := jsonFields(t)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		field, known := fields[key]
		if !known {
			continue
		}
		err := decodeAlone(object[key], field)
		if err == nil {
			continue
		}
		at := append(slices.Clone(path), key)
		if child, ok := object[key].(map[string]any); ok {
			if inner := locateIn(source, at, child, field); len(inner) > 0 {
				found = append(found, inner...)
				continue
			}
		}
		found = append(found, Problem{
			Field: strings.Join(at, "."), Value: object[key], Source: source,
			Detail: "the value does not fit" + reason(err), Remedy: "write " + expected(field),
		})
	}
	return found
}

// reason is why a value of its own type does not fit. What encoding/json and time say is about Go.
func reason(err error) string {
	text := oneLine(err)
	if strings.HasPrefix(text, "json: ") || strings.HasPrefix(text, "time: ") {
		return ""
	}
	return ": " + text
}

// decodeAlone decodes one value as its field's type.
func decodeAlone(v any, t reflect.Type) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, reflect.New(t).Interface())
}

// expected says in words what a field of type t holds.
func expected(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Name() == "Duration" || t.Name() == "TimeOrMetaDuration":
		return "a duration, such as 10s or 2h45m"
	case t.Name() == "QuantityValue" || t.Name() == "Quantity":
		return "a quantity, such as 500Mi"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64, reflect.Uint32:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "text, in quotes if it looks like a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "a mapping of keys to values, with quotes around text that looks like a number"
	default:
		return "a mapping of keys to values"
	}
}

// decodeFault is what a decoder says, without what it says of itself.
func decodeFault(err error) string {
	return strings.NewReplacer("error unmarshaling JSON: ", "", "while decoding JSON: ", "", "json: ", "",
		"error converting YAML to JSON: ", "", "yaml: ", "", "unmarshal errors: ", "").Replace(oneLine(err))
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
