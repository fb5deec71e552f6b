package nodelabel

import (
	"strings"
	"testing"
)

func TestProblems(t *testing.T) {
	for label, want := range map[string]string{ // a part of the only problem; empty: none
		"zone=a":                             "",
		"topology.driver.example/zone=a":     "",
		"topology.kubernetes.io/zone=a":      "",
		"node.kubernetes.io/x=":              "",
		"mykubernetes.io/x=":                 "",
		"kubernetes.io/x=a":                  "Kubernetes' own namespace",
		"node-restriction.kubernetes.io/x=a": "Kubernetes' own namespace",
		"topology.k8s.io/x=a":                "Kubernetes' own namespace",
		"=a":                                 "name part must be non-empty",
		"a/b/c=":                             "must consist of alphanumeric characters",
		"zone=a b":                           "a valid label must be",
		"zone=" + strings.Repeat("a", 64):    "must be no more than 63",
	} {
		key, value, _ := strings.Cut(label, "=")
		found := Problems(key, value)
		if want == "" && len(found) == 0 {
			continue
		}
		if want == "" || len(found) == 0 || !strings.Contains(found[0].Why, want) || found[0].Instead == "" {
			t.Errorf("%s: %v, want %q", label, found, want)
		}
	}
}
