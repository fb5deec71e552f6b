// Package twin reads what a node agent made of a pod, in a form that two agents can be compared by.
//
// Its input is the pod at the API server, its Events, and what the container runtime was given for
// its sandbox and containers: the CRI configurations and the OCI specs, read from the runtime
// itself. Its output is a flat list of facts, path and value. It guarantees that everything is in it
// but what Normalised names, so that a difference which nobody thought of is seen.
package twin

// Normalised is what is replaced or left out before two pods are compared, and why.
var Normalised = []string{
	"the pod's UID, its addresses, the ids of its sandbox and containers, removed ones too: the API server and the runtime choose them",
	"times and durations: no two runs have the same",
	"the name of the service account token's volume: the API server appends random letters",
	"the name of the network namespace and of the termination log's file: random",
	"the order of environment variables in the OCI spec, of DNS options and of conditions: the kubelet's own order of service links and options changes",
	"resourceVersion, managed fields and the like: metadata is not compared",
	"process ids, snapshot keys and what else only the runtime decides: only config and runtimeSpec are read of its answer",
	"how often an Event was repeated: it depends on when one looks",
}
