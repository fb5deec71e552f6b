// Package twin reads what a node agent made of a pod, so that two agents can be compared.
//
// It reads the pod and its Events from the API server, and the CRI configurations and OCI specs of its sandbox and
// containers from the runtime. The result is a flat list of facts, each with a path and a value. It contains
// everything except what Normalised names, so that unexpected differences are seen too.
package twin

// Normalised is what is replaced or left out before two pods are compared, and why.
var Normalised = []string{
	"the pod's UID, its addresses, the ids of its sandbox and containers, removed ones too: the API server and the " +
		"runtime choose them",
	"times and durations: no two runs have the same",
	"the name of the service account token's volume: the API server appends random letters",
	"the name of the network namespace and of the termination log's file: random",
	"the order of environment variables in the OCI spec, of DNS options and of conditions: the kubelet's own order of " +
		"service links and options changes",
	"resourceVersion, managed fields and the like: metadata is not compared",
	"process ids, snapshot keys and what else only the runtime decides: only config and runtimeSpec are read of its " +
		"answer",
	"how often an Event was repeated: it depends on when one looks",
}
