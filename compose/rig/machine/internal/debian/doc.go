// Package debian extracts Debian's own kernel for virtual machines and prepares what starts with it.
//
// It creates a folder in the cache with the kernel, an initial file system in memory that supports the machine's
// hardware and starts systemd from the disk, and a disk with the kernel's modules. The module disk is mounted where
// a distribution has its modules, because the machine's disk contains no kernel. The version is that of the release
// when the folder is created.
package debian
