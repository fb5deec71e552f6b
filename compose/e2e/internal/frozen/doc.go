// Package frozen provides file systems that stop answering on demand: who calls one then waits in the kernel, where
// nothing ends it, until the file system is thawed.
package frozen
