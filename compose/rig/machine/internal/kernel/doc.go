// Package kernel builds the Linux that runs as a process of this machine: User-Mode Linux with all that a
// node needs of a kernel.
//
// Input: the options in the file config and the corrections in patches. Output: an executable in the cache,
// keyed by both and by the series of the source, which comes from Debian. It takes some twenty minutes of
// one core, once; a build that was cut off goes on where it stopped.
package kernel
