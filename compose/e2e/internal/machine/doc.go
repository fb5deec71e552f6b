// Package machine asks the kernel about processes, sockets, cgroups and mounts.
//
// It reports who is connected to a socket, the identity and resource use of a process, and what containers have left
// behind. All answers come from the kernel (/proc, /sys, sock_diag), never from the programs under test.
package machine
