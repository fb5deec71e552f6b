// Package assignment divides the pods that have probes among the replicas of the prober.
//
// Its inputs are the pods, and the replicas' signs of life: heartbeats, and the bus's word of lost
// connections. Its output is ASSIGNMENT, a replica and a generation for each such pod.
//
// It guarantees that the probes per second are divided evenly, as far as whole pods can be, and that
// no more pods move than that takes. A pod is taken from a replica only when that one is dead or
// hangs and another lives, or when shares are uneven. While the bus is away nobody counts as dead.
package assignment
