// Package machine asks the kernel about processes, sockets, cgroups and mounts.
//
// Input: pids, socket paths and cgroup paths. Output: who is connected to a socket, as what a process
// runs, what it uses, and what containers have left. Guarantee: what it tells comes from the kernel
// (/proc, /sys, sock_diag), never from the programs that are asked about.
package machine
