// Package conformance pins upstream's end-to-end suite: its version, and those
// of all that it is built with. The rig builds it: `rig build --with conformance`.
package conformance

import _ "k8s.io/kubernetes/test/e2e" // a library, so that go.mod cannot name it as a tool
