package walls

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// content is a rule on what programs contain, whichever package imports it.
type content struct {
	packages func(path string) bool
	// services may contain these packages, and so may a program that contains one of the services.
	services []string
	reason   string
}

// contents are all rules.
var contents = []content{
	{
		packages: below("github.com/nats-io/nats-server"), services: []string{"bus"},
		reason: "the bus is the one NATS server; others are its clients",
	},
	{
		packages: below("github.com/google/cadvisor"), services: []string{"stats"},
		reason: "stats alone measures containers",
	},
	{
		packages: below("github.com/opencontainers/cgroups"), services: []string{"podsync", "stats"},
		reason: "podsync writes cgroups and stats measures them",
	},
	{
		packages: below("k8s.io/client-go/kubernetes", "k8s.io/client-go/rest", "k8s.io/client-go/tools/clientcmd",
			"k8s.io/client-go/transport"),
		services: []string{"podsync", "nodestatus", "nodeapi"},
		reason:   "others have no API credentials: they learn of objects from the bus",
	},
	{
		packages: below("k8s.io/apiserver", "k8s.io/cri-streaming"), services: []string{"nodeapi"},
		reason: "nodeapi alone serves the API of the node",
	},
	{
		packages: below("k8s.io/mount-utils", "github.com/container-storage-interface/spec",
			"github.com/opencontainers/selinux", "github.com/coreos/go-iptables"),
		services: []string{"podsync"},
		reason:   "podsync alone mounts volumes, labels files and writes rules of iptables",
	},
	{
		packages: below("github.com/hashicorp/go-plugin"), services: []string{"imagegc", "prober"},
		reason: "imagegc and prober alone have plugins",
	},
	{
		packages: below("k8s.io/kubelet/pkg/apis/deviceplugin", "k8s.io/kubelet/pkg/apis/podresources"),
		services: []string{"resources"},
		reason:   "resources alone speaks to device plugins and serves podresources",
	},
	{
		packages: onlyForTests,
		reason:   "what only tests use is in no program",
	},
}

// onlyForTests reports whether a package of the project is for tests: below a folder testing, or with a name such as
// podtest or teststream.
func onlyForTests(importPath string) bool {
	name := path.Base(importPath)
	return strings.HasPrefix(importPath, module) && (strings.Contains(importPath, "/testing/") ||
		strings.HasPrefix(name, "test") || strings.HasSuffix(name, "test"))
}

// Misplaced returns, for each program of the services and each rule, a package that the program may not contain.
func Misplaced(packages []Package) []string {
	var found []string
	for _, p := range packages {
		if p.Name != "main" || !below(strings.TrimSuffix(services, "/"))(p.ImportPath) {
			continue
		}
		for _, c := range contents {
			if slices.ContainsFunc(c.services, p.has) {
				continue
			}
			if i := slices.IndexFunc(p.Deps, c.packages); i >= 0 {
				found = append(found, fmt.Sprintf("%s contains %s, which %s needs: %s", p.ImportPath, p.Deps[i],
					needs(packages, p, p.Deps[i]), c.reason))
			}
		}
	}
	return found
}

// has reports whether a program contains a service.
func (p Package) has(service string) bool {
	return slices.ContainsFunc(p.Deps, below(services+service))
}

// needs returns the package of the program that needs the dependency and itself has the fewest: the one that imports
// it, or imports a library that does.
func needs(packages []Package, program Package, dependency string) string {
	found := program
	for _, p := range packages {
		if slices.Contains(program.Deps, p.ImportPath) && slices.Contains(p.Deps, dependency) &&
			len(p.Deps) < len(found.Deps) {
			found = p
		}
	}
	return found.ImportPath
}
