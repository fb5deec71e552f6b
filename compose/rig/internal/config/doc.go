// Package config writes the configuration files of a rig's programs.
//
// It writes containerd's configuration, with the CNI network and the registry mirror, and the KubeletConfiguration
// of the node agent. All paths belong to the instance, so the rig does not use or change the machine's own container
// runtime or kubelet.
package config
