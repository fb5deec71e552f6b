// Package kernel builds User-Mode Linux with everything that a node needs from a kernel.
//
// The file config has the options, and the folder patches has corrections. The cache holds the executable, keyed by
// both and by the series of the source, which comes from Debian. The build takes about twenty minutes of one core,
// once. An interrupted build continues where it stopped.
package kernel
