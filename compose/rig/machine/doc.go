// Package machine starts a separate machine with its own kernel, systemd, cgroup v2, and a disk that survives a
// reboot.
//
// It can also cut the power. It needs root. Each start uses the clean disk, except after a reboot or a power cut.
// Several machines can run side by side: they share only the cached kernel and disk, which they only read. A machine
// without Options.Detached ends with its caller and takes its processes, link, network namespace and memory with it.
// Only the folder that the caller named remains.
//
// There are two kinds. Build chooses QEMU with Debian's own kernel where KVM works, and User-Mode Linux elsewhere,
// unless KindVariable names one. User-Mode Linux is a Linux that runs as a process of this machine and needs no
// virtualization. It is not a security boundary, so run only code in it that you would also run here. A backend is what
// the kinds differ in: the program, its arguments, and what the machine's folder holds before it starts.
package machine
