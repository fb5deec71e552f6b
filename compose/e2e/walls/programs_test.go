package walls

import (
	"slices"
	"strings"
	"testing"
)

func TestPrograms(t *testing.T) {
	packages, err := List(t.Context(), top(t), allPackages...)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range Misplaced(packages) {
		t.Error(problem)
	}
	// What is in no program needs no rule.
	for _, c := range contents {
		for _, s := range c.services {
			i := slices.IndexFunc(packages, func(p Package) bool { return p.ImportPath == services+s+"/cmd/"+s })
			if i < 0 || !slices.ContainsFunc(packages[i].Deps, c.packages) {
				t.Errorf("go list does not show what %s alone may contain: %s", s, c.reason)
			}
		}
	}
}

// TestMisplacedIsFound is the positive control: files that are not there are shown to go list.
func TestMisplacedIsFound(t *testing.T) {
	packages := broken(t, map[string]string{
		"services/pleg/internal/hint": "github.com/nats-io/nats-server/v2/server",
		"services/prober":             "github.com/google/cadvisor/lib/fs",
		"services/bus":                "github.com/opencontainers/cgroups",
		"services/stats":              "k8s.io/apiserver/pkg/server/dynamiccertificates",
		"services/evictor":            "k8s.io/mount-utils",
		"services/nodestatus":         "github.com/hashicorp/go-plugin",
		"services/podsync":            module + "services/internal/tracing/spantest",
		"services/resources":          module + "services/internal/clientcert",
	}, allPackages...)
	found := Misplaced(packages)
	for _, want := range []string{
		"pleg/cmd/pleg contains github.com/nats-io/nats-server/v2",
		"prober/cmd/prober contains github.com/google/cadvisor/lib/",
		"bus/cmd/bus contains github.com/opencontainers/cgroups",
		"stats/cmd/stats contains k8s.io/client-go/kubernetes",
		"stats/cmd/stats contains k8s.io/apiserver/",
		"evictor/cmd/evictor contains k8s.io/mount-utils, which " + services + "evictor needs: podsync alone",
		"nodestatus/cmd/nodestatus contains github.com/hashicorp/go-plugin",
		"podsync/cmd/podsync contains " + services + "internal/tracing/spantest",
		"resources/cmd/resources contains k8s.io/client-go/",
		"microlet/cmd/microlet contains " + services + "internal/tracing/spantest",
		"microlet/cmd/microlet-local contains github.com/nats-io/nats-server/v2",
	} {
		if !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, services+want) }) {
			t.Errorf("not found: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("found:\n%s", strings.Join(found, "\n"))
	}
}

func TestOnlyForTests(t *testing.T) {
	for path, want := range map[string]bool{
		module + "services/bus/bustest":                   true,
		module + "services/internal/testing/fake":         true,
		module + "services/nodeapi/internal/teststream":   true,
		module + "services/podsync/internal/attestation":  false,
		module + "services/podsync/internal/pod":          false,
		"k8s.io/apimachinery/pkg/api/meta/testrestmapper": false,
		"k8s.io/client-go/testing":                        false,
	} {
		if got := onlyForTests(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
