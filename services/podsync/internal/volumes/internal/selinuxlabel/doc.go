// Package selinuxlabel determines the SELinux label with which a volume is mounted for a pod (KEP-1710).
//
// If a volume is mounted with the label of its pod (mount -o context), no runtime needs to walk over its files to label
// each of them. Before a volume is mounted, Labels decides:
//
//   - On a node without SELinux no volume has a label.
//   - The containers that mount the volume must have one label. It comes from their seLinuxOptions, or the pod's.
//   - Only PersistentVolumes have one, and only of CSI drivers that say seLinuxMount.
//   - A pod says no with seLinuxChangePolicy Recursive.
//   - Pods that have one volume at a time must want it with one label.
//
// The rules, the errors and the metrics are those of the kubelet.
package selinuxlabel
