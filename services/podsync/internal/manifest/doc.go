// Package manifest turns the text of a static pod's manifest into the pod that the node runs.
//
// Input: YAML or JSON of a core/v1 Pod, or of a PodList, of at most 10 MiB, and where it came from. Output: the pod
// with every default that the API server would have set, its node, name, UID and annotations as the kubelet gives them,
// or an error that names field, value and remedy.
//
// Guarantees: the same manifest from the same place has the same UID under the kubelet and under microlet, so a node
// that is handed over keeps its static pods. Nothing reaches the rest that could not run: what the API server would
// refuse is refused here, and so is a reference to an object of the API, which a static pod cannot follow. No input
// panics or takes more than its size.
package manifest
