// Package assignment assigns each pod that has probes to one replica of the prober.
//
// It reads the pods, the heartbeats of the replicas and the bus's reports of lost connections. It writes ASSIGNMENT:
// a replica and a generation for each such pod. It distributes the probes per second as evenly as whole pods allow,
// and moves as few pods as possible. It takes a pod from a replica only if that replica is dead or hangs and another
// is alive, or if the distribution is uneven. While the bus is down, no replica counts as dead.
package assignment
