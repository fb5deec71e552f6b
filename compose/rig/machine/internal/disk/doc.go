// Package disk makes the disk from which a machine starts: a small Debian with systemd, logind, D-Bus, sshd,
// iptables, and the rig's own containerd, runc and CNI plugins.
//
// Input: the programs to put on it. Output: a folder of the cache with the image, which nobody may write to,
// and the keys with which one comes in. It is keyed by the list of packages, the files beside this package
// and the programs' own keys.
//
// The file etc/machine-id is empty: each machine has an id of its own, from the kernel's command line. Without the file,
// systemd would take its first start for a new installation's, and enable all that Debian enables.
package disk
