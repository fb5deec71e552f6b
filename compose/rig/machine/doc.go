// Package machine starts a real machine beside this one: a kernel of its own, systemd, cgroup v2, a disk that
// survives a reboot, and a power cord.
//
// Input: Options. Output: a Machine. Guarantees:
//
//   - each start is from the clean disk, unless it is a reboot or the power's coming back;
//   - several machines run side by side, and share nothing but the cached kernel and disk, which they only read;
//   - a machine without Options.Detached ends with its caller, however that ends, and takes its processes, its link,
//     its network namespace and its memory with it. What it leaves then is the folder that the caller named.
//
// There is one kind now: User-Mode Linux, which needs no virtualisation. It is a Linux that runs as a process of
// this machine's and uses its CPU directly. It does not wall off what runs in it from this machine: it is for code
// that one would also run here. QEMU with KVM and a distribution's kernel would be the better machine where KVM works.
//
// It needs root.
package machine
