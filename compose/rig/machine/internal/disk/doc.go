// Package disk creates the disk image of a machine: a small Debian with systemd, logind, D-Bus, sshd and iptables.
//
// The disk also contains the rig's containerd, runc and CNI plugins. The cache holds the read-only image and the
// keys for logging in, keyed by the list of packages, the files beside this package, and the keys of the programs.
//
// The file etc/machine-id is empty, because each machine gets its own ID from the kernel's command line. Without the
// file, systemd would treat the first start as a new installation and enable everything that Debian enables.
package disk
