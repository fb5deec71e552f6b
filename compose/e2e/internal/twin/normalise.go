package twin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

type normaliser struct {
	words []string
	ips   []*regexp.Regexp
	// users is the first ID of a pod that has users of its own: each agent picks any.
	users float64
}

func newNormaliser(p *corev1.Pod) *normaliser {
	n := &normaliser{}
	n.replace(string(p.UID), "<uid>")
	n.replace(strings.ReplaceAll(string(p.UID), "-", "_"), "<uid>")
	if !p.Spec.HostNetwork {
		for _, ip := range p.Status.PodIPs {
			n.ips = append(n.ips, regexp.MustCompile(`\b`+regexp.QuoteMeta(ip.IP)+`\b`))
		}
	}
	return n
}

func (n *normaliser) replace(word, by string) {
	if word != "" {
		n.words = append(n.words, word, by)
	}
}

// patterns are what is random or a time in a text.
var patterns = []struct {
	find *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-<random>"},
	{regexp.MustCompile(`cni-[0-9a-f]{8}-[0-9a-f-]{27}`), "cni-<random>"},
	{regexp.MustCompile(`(/containers/[^/"]+)/[0-9a-f]{8}\b`), "$1/<random>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "<time>"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(h|m|s|ms|µs|ns))+\b`), "<duration>"},
	// of a container that is removed already; images have sha256: before
	{regexp.MustCompile(`(^|[^:0-9a-z])[0-9a-f]{64}\b`), "$1<id>"},
	{regexp.MustCompile(`/proc/\d+/`), "/proc/<pid>/"},
	{regexp.MustCompile(`"config\.seen": ?"[^"]*"`), `"config.seen":"<time>"`},
}

func (n *normaliser) text(s string) string {
	s = strings.NewReplacer(n.words...).Replace(s)
	for _, ip := range n.ips {
		s = ip.ReplaceAllString(s, "<pod IP>")
	}
	for _, p := range patterns {
		s = p.find.ReplaceAllString(s, p.by)
	}
	return s
}

// flatten writes every leaf of a tree, under its path.
func (n *normaliser) flatten(path string, v any, facts Facts) {
	switch v := v.(type) {
	case map[string]any:
		for k, below := range v {
			if k != "lastTransitionTime" && k != "lastProbeTime" {
				n.flatten(path+"."+n.text(k), below, facts)
			}
		}
	case []any:
		if strings.HasSuffix(path, ".dns_config.options") {
			v = sorted(v)
		}
		for i, below := range v {
			n.flatten(path+"["+n.index(path, i, below)+"]", below, facts)
		}
		if strings.HasSuffix(path, "ounts") {
			facts[path+".order"] = n.order(path, v)
		}
	case nil:
	default:
		if v == n.users && n.users != 0 {
			facts[path] = "<the pod's first ID>"
			return
		}
		facts[path] = n.text(fmt.Sprint(v))
	}
}

func sorted(list []any) []any {
	return slices.SortedFunc(slices.Values(list),
		func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// index names an element of a list: by what identifies it where the order means nothing, by its place
// otherwise.
func (n *normaliser) index(path string, i int, v any) string {
	if text, ok := v.(string); ok && strings.HasSuffix(path, ".process.env") {
		name, _, _ := strings.Cut(text, "=")
		return name
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return fmt.Sprint(i)
	}
	for _, key := range keys {
		if id, ok := fields[key].(string); ok && id != "" {
			return n.text(id)
		}
	}
	return fmt.Sprint(i)
}

// keys identify an element of a list, in this order.
var keys = []string{"container_path", "destination", "mountPath", "key", "name", "type"}

func (n *normaliser) order(path string, list []any) string {
	var names []string
	for i, v := range list {
		names = append(names, n.index(path, i, v))
	}
	return strings.Join(names, " ")
}

// Difference is a fact that two pods do not share; "" stands for one that is not there.
type Difference struct{ Path, A, B string }

// Compare returns the facts in which two pods differ, by path.
func Compare(a, b Facts) []Difference {
	var all []Difference
	for path, value := range a {
		if other, ok := b[path]; !ok || other != value {
			all = append(all, Difference{path, value, b[path]})
		}
	}
	for path, value := range b {
		if _, ok := a[path]; !ok {
			all = append(all, Difference{Path: path, B: value})
		}
	}
	slices.SortFunc(all, func(x, y Difference) int { return strings.Compare(x.Path, y.Path) })
	return all
}
