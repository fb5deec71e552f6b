// Package disks shows what a node does when the filesystem of its images is full. Its rig has a small one of its own.
package disks
