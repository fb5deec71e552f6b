// Package qemu builds the command line that starts a machine with QEMU, and tests whether this machine supports KVM.
//
// The cache keeps the result of the test (Try) until the next boot.
package qemu
