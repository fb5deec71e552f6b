// Package volume mounts the volumes of pods.
//
// Input: a pod, and the objects and tokens that its volumes name. Output: folders below
// <root-dir>/pods/<uid>/volumes in the kubelet's layout, so that either can take over
// from the other. Built is the projected volume, which every pod gets for its service
// account: tokens, config maps, secrets and the downward API.
//
// Guarantees: a reader of a volume sees the old files or the new ones, never a mixture;
// mounting again refreshes what changed and touches nothing else; unmounting what is
// gone succeeds; a call that hangs in the kernel is abandoned at its deadline and holds
// up no other pod.
package volume
