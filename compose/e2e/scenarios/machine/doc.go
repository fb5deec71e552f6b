// Package machine shows a node that has a machine of its own: systemd, cgroup v2, reboots and power cuts.
package machine
