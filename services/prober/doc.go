// Package prober runs startup, liveness and readiness probes by exec, HTTP, TCP, gRPC or a probe plugin.
//
// PODS, POD_STATUS and ASSIGNMENT say what to probe and which replica probes it. The results go to PROBE_RESULTS,
// which podsync reads. The Events Unhealthy and ProbeWarning and the metrics are the kubelet's. Exec probes run
// through the CRI gateway, where the prober may call only ExecSync.
//
// A restart loses nothing: the counts toward the thresholds continue from PROBE_RESULTS, and probes keep their
// rhythm. A probe that could not run is not a failure. The prober has no credentials, no root and no capability. A
// plugin that hangs or crashes does not affect other probes.
package prober
