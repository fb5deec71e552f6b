// Package volumes sets up the volumes of pods.
//
// It creates folders below <root-dir>/pods/<uid>/volumes in the kubelet's layout, and a bind mount below
// volume-subpaths for each mount with a subPath. Each kind of volume is a Plugin: emptyDir, hostPath, configMap,
// secret, downwardAPI, projected, nfs, csi, image, and claims. Each kind of PersistentVolume that a pod can claim has
// its own implementation of persistentVolumes: csi, local, nfs, hostPath.
//
//   - A reader of API data sees the old files or the new ones, never a mixture. A repeated setup changes nothing
//     that exists, and a refresh changes only what differs.
//   - A subPath never leaves its volume, and a removal never leaves the pod's folders, whatever the processes of the
//     pod do.
//   - No refresh removes what a container mounts by a subPath between Hold and its release.
//   - Unmounting something that is gone succeeds.
//   - What may lie on a foreign file system is touched by child processes alone (Operations). One that hangs is
//     abandoned at its deadline. It delays no other pod, and no second call hangs on its path.
//   - A volume that hangs keeps no other volume of its pod from being unmounted.
package volumes
