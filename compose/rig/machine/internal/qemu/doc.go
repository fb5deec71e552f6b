// Package qemu builds the command line that starts a machine with QEMU.
//
// Try tests whether this machine supports KVM. The cache keeps the result until the next boot.
package qemu
