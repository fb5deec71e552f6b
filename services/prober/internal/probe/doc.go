// Package probe runs one probe of one container once.
//
// Its input is a Target: the probe, the container and the address of the pod. Its output is a Result in the
// kubelet's words, or an error if the probe could not run, which says nothing about the container. A probe ends at
// its timeout, reads at most 16 KiB of the headers of a response and 64 KiB before an HTTPS handshake is done, and
// stores at most 10 KiB of its body. It uses each connection once, uses no proxy from the environment, and does not
// verify certificates. A closed connection does not leave a socket in TIME-WAIT for long.
package probe
