// Package conformance pins the versions of Kubernetes' end-to-end suites, of the cluster and of the node, and of all
// their dependencies.
//
// The rig builds them with `rig build --with conformance`.
package conformance

import (
	// Libraries, so that go.mod cannot name them as tools.
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
)
