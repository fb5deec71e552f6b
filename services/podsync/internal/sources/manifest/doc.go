// Package manifest turns the manifest of a static pod into the pod that the node runs.
//
// A manifest is YAML or JSON of a core/v1 Pod or a PodList, at most 10 MiB. The pod gets all defaults of the API
// server, and its node, name, UID and annotations as from the kubelet. So the same manifest in the same place has
// the same UID under both agents, and static pods survive a move. An error names field, value and remedy. The
// package refuses what the API server would refuse, and references to API objects, which a static pod cannot use. No
// input causes a panic or takes more memory than its size.
package manifest
