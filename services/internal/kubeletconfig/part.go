package kubeletconfig

import (
	"fmt"
	"iter"
	"net/url"
	"reflect"
	"slices"
	"strings"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// nodePrefix begins the names of the fields of NodeFlags.
const nodePrefix = "node."

// fieldsOf gives the fields of a struct by their names in JSON, without what is inlined.
func fieldsOf(of reflect.Value) iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Type().Field(i).Tag.Get("json"), ",")
			if name != "" && name != "-" && !yield(name, of.Field(i)) {
				return
			}
		}
	}
}

// part is what WriteResolved writes: each field that was asked for, also where it is empty, so that the reader can
// distinguish what is empty from what it did not get.
func (c *Config) part(fields []string) (map[string]any, error) {
	kubelet := map[string]any{"apiVersion": c.Kubelet.APIVersion, "kind": c.Kubelet.Kind}
	node := map[string]any{}
	asked := func(name string) bool { return fields == nil || slices.Contains(fields, name) }
	found := 0
	for name, value := range fieldsOf(reflect.ValueOf(c.Kubelet)) {
		if asked(name) {
			kubelet[name] = value.Interface()
			found++
		}
	}
	for name, value := range fieldsOf(reflect.ValueOf(c.Node)) {
		if asked(nodePrefix + name) {
			node[name] = value.Interface()
			found++
		}
	}
	if fields != nil && found != len(fields) {
		return nil, fmt.Errorf("of the fields %q %d do not exist or are named twice", fields, len(fields)-found)
	}
	part := map[string]any{"kubelet": kubelet, "node": node}
	if fields == nil {
		part["provenance"] = c.Provenance
	}
	return part, nil
}

// fillAbsent gives the fields that data does not name their defaults, and reports whether it names all.
func (c *Config) fillAbsent(data []byte) (complete bool, err error) {
	var named struct{ Kubelet, Node map[string]any }
	if err := yaml.Unmarshal(data, &named); err != nil {
		return false, err
	}
	var defaults kubeletv1beta1.KubeletConfiguration
	SetDefaults(&defaults)
	kubelet := fill(reflect.ValueOf(&c.Kubelet).Elem(), reflect.ValueOf(defaults), named.Kubelet)
	node := fill(reflect.ValueOf(&c.Node).Elem(), reflect.ValueOf(defaultNodeFlags()), named.Node)
	return kubelet && node, nil
}

func fill(to, from reflect.Value, named map[string]any) (complete bool) {
	defaults := map[string]reflect.Value{}
	for name, value := range fieldsOf(from) {
		defaults[name] = value
	}
	complete = true
	for name, value := range fieldsOf(to) {
		if _, is := named[name]; !is {
			value.Set(defaults[name])
			complete = false
		}
	}
	return complete
}

// Masked is a copy of c for who is not root: it shows what is set and holds no secret. Those are the values of
// staticPodURLHeader and a password in staticPodURL.
func (c *Config) Masked() *Config {
	out := *c
	out.Kubelet = *c.Kubelet.DeepCopy()
	for name := range out.Kubelet.StaticPodURLHeader {
		out.Kubelet.StaticPodURLHeader[name] = []string{masked}
	}
	if u, err := url.Parse(out.Kubelet.StaticPodURL); err == nil && u.User != nil {
		out.Kubelet.StaticPodURL = u.Redacted()
	}
	return &out
}

// ForServices is a copy of c for a service, which shows it at /configz: it holds no secret that opens anything on this
// node. Without a staticPodURL, the values of staticPodURLHeader are sent nowhere, so they stay, as a client of the
// kubelet's API expects of the merged configuration.
func (c *Config) ForServices() *Config {
	out := c.Masked()
	if c.Kubelet.StaticPodURL == "" {
		out.Kubelet.StaticPodURLHeader = c.Kubelet.DeepCopy().StaticPodURLHeader
	}
	return out
}

// masked stands for a value that may be a secret.
const masked = "<masked>"
