// Package cgroup owns the part of the node's cgroup tree that pods live in.
//
// Its job: the root "kubepods", the QoS classes "burstable" and "besteffort" below it and
// one cgroup a pod, "pod<uid>", with the names, shares, quotas and limits of the kubelet,
// so that a node can be handed from one to the other while its containers run.
//
// Inputs are the pods and the settings of KubeletConfiguration (cgroupRoot, cgroupDriver,
// cgroupsPerQOS, cpuCFSQuota, podPidsLimit, enforceNodeAllocatable). Outputs are cgroups
// and the name that CRI gets as a sandbox's cgroup_parent.
//
// It guarantees that each call is idempotent, that a cgroup which exists is never created
// anew or emptied, and that nothing outside its own root is touched. It works with cgroup
// v1 and v2 and with the cgroupfs and systemd drivers.
package cgroup
