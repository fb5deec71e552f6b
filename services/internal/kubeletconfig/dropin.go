package kubeletconfig

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// DropIn is what a refused configuration would need in order to start.
type DropIn struct {
	// YAML is a file for --config-dir; empty if no file could help.
	YAML []byte
	// Losses say of each value that the file replaces what it was, what it becomes, and what is lost by it.
	Losses []string
	// ByHand are the problems that no file can solve: wrong flags, unknown keys, unreadable files.
	ByHand []error
}

// SuggestDropIn returns the drop-in with which a configuration would start that Inspect has refused with err. It gives
// each refused field its default, or what turns the refused check off.
func SuggestDropIn(c *Config, err error) (DropIn, error) {
	var d DropIn
	defaults, given := asObject(Default()), map[string]any{}
	if c != nil {
		given = asObject(c.Masked().Kubelet)
	}
	file := map[string]any{}
	for _, one := range Flatten(err) {
		var p Problem
		if !errors.As(one, &p) || !inFiles(p) || at(given, p.Field) == nil {
			d.ByHand = append(d.ByHand, one)
			continue
		}
		value := at(defaults, p.Field)
		if turnsOff, ok := checksOfTheHost[p.Field]; ok {
			value = turnsOff
		}
		put(file, p.Field, value)
		if p.Value == nil {
			p.Value = at(given, p.Field)
		}
		d.Losses = append(d.Losses, loss(p, value))
	}
	if len(file) == 0 {
		return d, nil
	}
	file["apiVersion"], file["kind"] = apiVersion, kind
	var encode error
	d.YAML, encode = yaml.Marshal(file)
	return d, encode
}

// checksOfTheHost are fields that refuse a start because of the machine, with the value that does not.
var checksOfTheHost = map[string]any{"failSwapOn": false, "failCgroupV1": false}

// inFiles reports whether another file can decide about the field that a problem is about. A flag wins over every file,
// and what a file is of holds for that file alone.
func inFiles(p Problem) bool {
	return p.Field != "kind" && p.Field != "apiVersion" && !strings.HasPrefix(p.Source, "flag ") &&
		!strings.HasPrefix(p.Field, "--") && !strings.Contains(p.Field, "[")
}

// put sets the value at a path; null restores the default.
func put(object map[string]any, path string, value any) {
	key, rest, nested := strings.Cut(path, ".")
	if !nested {
		object[key] = value
		return
	}
	inner, ok := object[key].(map[string]any)
	if !ok {
		inner = map[string]any{}
		object[key] = inner
	}
	put(inner, rest, value)
}

// loss says what a value becomes, and what the node does without then.
func loss(p Problem, becomes any) string {
	text := "none"
	if becomes != nil {
		text = show(p.Field, becomes)
	}
	lost := "the value was refused: " + p.Detail
	if p.Detail == notBuilt {
		lost = "the node does without what it enforces or protects"
	}
	if _, ok := checksOfTheHost[p.Field]; ok {
		lost = "the node starts although " + p.Detail
	}
	return fmt.Sprintf("%s: %s instead of %s; %s", p.Field, text, show(p.Field, p.Value), lost)
}
