// Package probe runs one probe of one container, once.
//
// Its input is a Target: the probe as the pod spells it, the container, and where the pod is. Its
// output is a Verdict, in the kubelet's words, or an error if the probe could not be run, which says
// nothing of the container.
//
// It guarantees that a probe ends at its timeout, and that a target cannot make it hold more than
// 10 KiB of what it answers. Connections are used once, no proxy of the node's environment is used,
// certificates are not verified, and a closed connection leaves no socket in TIME-WAIT for long.
package probe
