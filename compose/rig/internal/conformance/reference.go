package conformance

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Reference is the list of specs that the real kubelet passes.
type Reference struct {
	Version string // of Kubernetes, as v1.37.1
	Specs   []string
}

const referenceHead = "# Specs of the default selection that the real kubelet passes in the rig, written by `%s`."

var referenceCount = regexp.MustCompile(`^# Kubernetes (v\S+), (\d+) specs$`)

// ReadReference reads the list. Its head says how many specs there are, so
// that none is lost unnoticed.
func ReadReference(path string) (Reference, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Reference{}, fmt.Errorf("read the kubelet's list: %w", err)
	}
	ref, err := parseReference(text)
	if err != nil {
		return Reference{}, fmt.Errorf("read the kubelet's list %s: %w", path, err)
	}
	return ref, nil
}

func parseReference(text []byte) (Reference, error) {
	var ref Reference
	declared := ""
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if match := referenceCount.FindStringSubmatch(line); match != nil {
			ref.Version, declared = match[1], match[2]
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if seen[line] {
			return ref, fmt.Errorf("spec %q is there twice", line)
		}
		seen[line] = true
		ref.Specs = append(ref.Specs, line)
	}
	if err := lines.Err(); err != nil {
		return ref, err
	}
	if count := fmt.Sprint(len(ref.Specs)); declared != count || len(ref.Specs) == 0 {
		return ref,
			fmt.Errorf("it has %s specs and says that it has %q: restore it, or record it again with the kubelet",
				count, declared)
	}
	return ref, nil
}

// WriteReference writes the list of what the kubelet passed.
func WriteReference(path string, suite Suite, version string, passes []string) error {
	var buf bytes.Buffer
	_, _ = fmt.Fprintf(&buf, referenceHead+"\n# Kubernetes %s, %d specs\n", suite.recorder(), version, len(passes))
	for _, name := range slices.Sorted(slices.Values(passes)) {
		_, _ = fmt.Fprintln(&buf, name)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the kubelet's list: %w", err)
	}
	return nil
}

// Focused are the specs of the list on which the expression focuses.
func (r Reference) Focused(suite Suite, focus *regexp.Regexp) []string {
	if focus == nil {
		return r.Specs
	}
	return slices.DeleteFunc(slices.Clone(r.Specs),
		func(name string) bool { return !focus.MatchString(suite.described(name)) })
}

// Reasons say, by the spec's name, why microlet does not pass it yet.
type Reasons map[string]string

// ReadReasons reads lines of the form "<name>\t<reason>".
func ReadReasons(path string) (Reasons, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read reasons: %w", err)
	}
	reasons, err := parseReasons(text)
	if err != nil {
		return nil, fmt.Errorf("read reasons %s: %w", path, err)
	}
	return reasons, nil
}

func parseReasons(text []byte) (Reasons, error) {
	reasons := Reasons{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, "\t")
		reason = strings.TrimSpace(reason)
		if !ok || reason == "" {
			return nil, fmt.Errorf("line %d: want the spec's name, a tab and the reason", number)
		}
		if _, ok := reasons[name]; ok {
			return nil, fmt.Errorf("line %d: spec %q is there twice", number, name)
		}
		reasons[name] = reason
	}
	return reasons, nil
}

func (r Results) named(state State) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r.Specs)) {
		if r.Specs[name].State == state {
			names = append(names, name)
		}
	}
	return names
}
