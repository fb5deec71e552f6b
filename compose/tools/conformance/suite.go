// Package conformance pins upstream's end-to-end suites, that of the cluster and
// that of the node: their version, and those of all that they are built with.
// The rig builds them: `rig build --with conformance`.
package conformance

import (
	// Libraries, so that go.mod cannot name them as tools.
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
)
