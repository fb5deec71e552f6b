// Package debian takes Debian's own kernel for virtual machines from its package, and makes what starts with it.
//
// Input: the cache. Output: a folder of it with the kernel, a first filesystem in memory that knows the machine's
// hardware and hands over to the disk's systemd, and a disk with the kernel's modules, which is mounted where a
// distribution has them: the machine's disk itself knows of no kernel. The version is the release's when the folder is
// made.
package debian
