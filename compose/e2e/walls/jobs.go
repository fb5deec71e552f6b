package walls

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	// firstVerb is the verb after the name of a package: "Package walls checks".
	firstVerb = regexp.MustCompile(`^Package \S+ (\w+s)\b`)
	// joined is a word that "and" may make a second verb.
	joined = regexp.MustCompile(`\band (?:then |also |never )?(\w+s)\b`)
)

// twoVerbs are the packages whose comments may join two verbs, with the reason why they have one job all the same.
var twoVerbs = map[string]string{
	"compose/rig/internal/cgroup":  "what creates something of a rig removes it",
	"compose/rig/internal/mounts":  "what creates something of a rig removes it",
	"compose/rig/internal/network": "what creates something of a rig removes it",
	"compose/rig/internal/process": "a process that is started is stopped",

	"services/evictor/internal/report":    "it reads what it has put, after a restart",
	"services/evictor/internal/threshold": "a threshold is read so that it can be judged",
}

// TwoJobs returns each package whose comment joins two jobs. A verb is what some package comment begins with, so that
// "volumes, images and logs" are no jobs.
func TwoJobs(packages []Package) []string {
	verbs := map[string]bool{}
	for _, p := range packages {
		if m := firstVerb.FindStringSubmatch(p.Doc); m != nil {
			verbs[m[1]] = true
		}
	}
	var found []string
	for _, p := range packages {
		if _, ok := twoVerbs[strings.TrimPrefix(p.ImportPath, module)]; ok {
			continue
		}
		for _, m := range joined.FindAllStringSubmatch(p.Doc, -1) {
			if verbs[m[1]] {
				found = append(found, fmt.Sprintf("the comment of %s joins two jobs by %q: a package has one",
					p.ImportPath, m[0]))
			}
		}
	}
	return found
}

// mostImports is how many packages of the project the root package of a service may import. One that needs more
// connects what a package of its own could connect.
const mostImports = 20

// Crowded returns each root package of a service that imports too many packages of the project.
func Crowded(packages []Package) []string {
	var found []string
	for _, p := range packages {
		name := service(p.ImportPath)
		if name == "" || p.ImportPath != services+name {
			continue
		}
		own := 0
		for _, i := range p.Imports {
			if strings.HasPrefix(i, module) {
				own++
			}
		}
		if own > mostImports {
			found = append(found, fmt.Sprintf("%s imports %d packages of the project: at most %d may meet in a root package",
				p.ImportPath, own, mostImports))
		}
	}
	return found
}
