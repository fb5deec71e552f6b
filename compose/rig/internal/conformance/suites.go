package conformance

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/microlet/microlet/compose/rig"
)

// Suite is one of upstream's end-to-end suites.
type Suite struct {
	// Name is how a user calls it.
	Name string
	// Title is how it describes itself: ginkgo puts that before the names of
	// specs when it compares them with a focus.
	Title string
	// Group of the rig's programs that has it, and its program there.
	Group, Program string
	// OnNode says that it runs on the node that it tests, and needs that in the
	// kubelet's default places.
	OnNode bool
	// Instance is the beginning of the names of the instances that it runs against.
	Instance string
	// OnMachine says that the node has a machine of its own, with systemd and
	// cgroup v2.
	OnMachine bool
	// skipFiles leaves out specs by the files that have them; "" leaves out none.
	skipFiles string
	// prefix of the names of its files in the repository.
	prefix string
	// explained says that each spec of the default selection that the kubelet
	// does not pass has its reason in a file, too.
	explained bool
}

// Suites of upstream.
var (
	// E2E looks at a cluster through its API server.
	E2E = Suite{
		Name: "e2e", Title: "Kubernetes e2e suite", Group: rig.GroupConformance, Program: rig.Suite, Instance: "conformance",
	}
	// Node looks at one node from inside: its files, its cgroups, its runtime.
	// The specs of test/e2e/common are in both suites; E2E runs them.
	Node = Suite{
		Name: "node", Title: "E2eNode Suite", Group: rig.GroupNodeConformance, Program: rig.NodeSuite, OnNode: true,
		Instance:  "node-suite",
		skipFiles: "/test/e2e/common/",
		prefix:    "node-", explained: true,
	}
	// E2EOnMachine is E2E with a node that has a machine of its own. It is judged by
	// the same list: what the kubelet passes on the host, it passes there.
	E2EOnMachine = onMachine(E2E)
	// NodeOnMachine is Node in the machine of the node's own.
	NodeOnMachine = onMachine(Node)
)

func onMachine(s Suite) Suite {
	s.Name, s.Instance, s.OnMachine = s.Name+"-machine", "vm-"+s.Name, true
	return s
}

// FindSuite returns the suite of that name, for a node with a machine of its own
// if onMachine is set.
func FindSuite(name string, onMachine bool) (Suite, error) {
	switch {
	case name == E2E.Name && onMachine:
		return E2EOnMachine, nil
	case name == E2E.Name:
		return E2E, nil
	case name == Node.Name && onMachine:
		return NodeOnMachine, nil
	case name == Node.Name:
		return Node, nil
	}
	return Suite{}, fmt.Errorf("suite %q: use %s or %s", name, E2E.Name, Node.Name)
}

// recorder is the command that writes what is recorded of the suite.
func (s Suite) recorder() string {
	if s.Name == E2E.Name {
		return "rig conformance --record"
	}
	return "rig conformance --family " + s.Name + " --record"
}

// described is the text that ginkgo compares with a focus.
func (s Suite) described(name string) string { return s.Title + " " + name }

// Exactly is a focus on the specs of these names and no other.
func (s Suite) Exactly(names []string) *regexp.Regexp {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return regexp.MustCompile(`^` + regexp.QuoteMeta(s.described("")) + `(?:` + strings.Join(quoted, "|") + `)$`)
}
