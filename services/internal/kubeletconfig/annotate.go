package kubeletconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Annotated is the effective KubeletConfiguration as YAML, with a comment at each value that says where it is from:
// a flag, a file, a drop-in, or the default. The flags that no field mirrors follow as comments. What may be a secret
// is masked. The kubelet reads the result as it is.
func (c *Config) Annotated() ([]byte, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\n", apiVersion, kind)
	object := asObject(c.Masked().Kubelet)
	delete(object, "apiVersion")
	delete(object, "kind")
	if err := annotate(&b, object, "", "", c.Provenance); err != nil {
		return nil, err
	}
	b.WriteString("# Flags that no field mirrors:\n")
	values := c.OwnFlags()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		source := c.Provenance["--"+name]
		if source == "" {
			source = "default"
		}
		fmt.Fprintf(&b, "#   --%s=%s    (%s)\n", name, values[name], source)
	}
	return []byte(b.String()), nil
}

// OwnFlags are the values of the flags that no field mirrors, by name without dashes.
func (c *Config) OwnFlags() map[string]string {
	values := c.FlagValues()
	maps.DeleteFunc(values, func(name, _ string) bool {
		_, mirrors := fieldOfFlag()[name]
		return mirrors
	})
	return values
}

// annotate writes an object whose fields are at path.
func annotate(b *strings.Builder, object map[string]any, path, indent string, from provenance) error {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		value, at := object[key], strings.TrimPrefix(path+"."+key, ".")
		inner, isObject := value.(map[string]any)
		if isObject && len(inner) > 0 && from.below(at) {
			fmt.Fprintf(b, "%s%s:\n", indent, key)
			if err := annotate(b, inner, at, indent+"  ", from); err != nil {
				return err
			}
			continue
		}
		text, err := yaml.Marshal(map[string]any{key: value})
		if err != nil {
			return fmt.Errorf("encode %s: %w", at, err)
		}
		source := from[at]
		for above := parentPath(at); source == "" && above != ""; above = parentPath(above) {
			source = from[above]
		}
		if source == "" {
			source = "default"
		}
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		fmt.Fprintf(b, "%s%s    # %s\n", indent, lines[0], source)
		for _, line := range lines[1:] {
			fmt.Fprintf(b, "%s%s\n", indent, line)
		}
	}
	return nil
}

// below reports whether a field inside of path was set.
func (p provenance) below(path string) bool {
	for field := range p {
		if strings.HasPrefix(field, path+".") {
			return true
		}
	}
	return false
}
