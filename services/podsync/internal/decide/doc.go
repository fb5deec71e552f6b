// Package decide compares what a pod asks for with what the runtime has of it, and
// says what is to be done next.
//
// Input: the pod as admitted, the runtime's state of it at one moment, the time, the
// container restart backoff and probe results by container id. Output: Actions, to be
// carried out in the order of its fields; afterwards the state is read and decided
// upon again.
//
// Guarantees: Decide is pure. It keeps nothing, calls nobody and changes none of its
// inputs, so the same input gives the same actions. Where the actions were carried out
// and nothing else happened, deciding again gives no actions. What is unknown never
// leads to a stop: a state that was not read gives no actions, and a probe without a
// result counts neither as a success nor as a failure.
//
// The decisions are those of the kubelet: when a sandbox is replaced, which containers
// restart under which policy, how init containers and sidecars are ordered (KEP-753),
// container restart rules (KEP-5307) and the crash loop's backoff (KEP-4603).
package decide
