// Package qemu knows how a machine is started with QEMU, and finds out whether this machine can do it with KVM.
//
// Input: the machine's hardware. Output: QEMU's command line; for Try, a verdict of this boot, which the cache keeps.
package qemu
