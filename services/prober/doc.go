// Package prober probes containers: startup, liveness and readiness, by exec, HTTP, TCP, gRPC or a
// plugin of the node's owner.
//
// Its inputs are PODS, POD_STATUS and ASSIGNMENT, which say what is to be probed and by which replica.
// Its outputs are PROBE_RESULTS, upon which podsync acts, the kubelet's Events Unhealthy and
// ProbeWarning in the outbox, and metrics with the kubelet's names. Commands run through the CRI
// gateway, of which the prober may call ExecSync.
//
// It guarantees that a restart loses nothing: the counts toward the thresholds go on from
// PROBE_RESULTS, and probes keep their rhythm. A probe that could not be run is no failure. It needs
// no credentials, no root and no capability, and a plugin that hangs or crashes harms no other probe.
package prober
