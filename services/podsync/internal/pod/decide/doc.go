// Package decide decides what to do next for a pod in the state that the runtime has of it.
//
// Decide is a pure function of the admitted pod, the runtime state, the time, the restart backoff and the probe
// results by container ID. It returns Actions, to be executed in the order of its fields. The worker then reads the
// state and decides again. If all actions were executed and nothing else happened, the next decision has no actions.
// Unknown data never stops a container: a state that was not read gives no actions, and a missing probe result is
// neither a success nor a failure.
//
// The decisions are the kubelet's: when a sandbox is replaced, which containers restart, the order of init
// containers and sidecars (KEP-753), container restart rules (KEP-5307), the CrashLoopBackOff (KEP-4603) and the order
// of a resize (KEP-1287).
package decide
