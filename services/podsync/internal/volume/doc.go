// Package volume sets up the volumes of pods.
//
// Input: a pod, and the objects and tokens that its volumes name. Output: folders below
// <root-dir>/pods/<uid>/volumes in the kubelet's layout, so that either can take over
// from the other, and for each mount with a subPath a bind mount below volume-subpaths.
// Each kind of volume is a Plugin: emptyDir, hostPath, configMap, secret, downwardAPI and
// projected are here.
//
// Guarantees: a reader of a volume with files of the API sees the old files or the new ones,
// never a mixture; setting up again touches nothing that is there, and a refresh nothing that
// did not change; a subPath never leaves its volume, whatever the pod's processes do
// meanwhile; unmounting what is gone succeeds, and what a pod made of its folders leads the removal
// nowhere else; a call that hangs in the kernel is abandoned
// at its deadline, holds up no other pod, and is the only one that hangs on its path.
package volume
