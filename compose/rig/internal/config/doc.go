// Package config writes the configuration files of a rig's programs.
//
// Input: the instance's folders, addresses and limits. Output: containerd's
// configuration with its CNI network and registry mirror, and the
// KubeletConfiguration that either node agent is started with. Guarantee: each
// path in them belongs to the instance, so that nothing of the machine's own
// container runtime or kubelet is used or changed.
package config
