// Package csi calls the node services of the CSI drivers that are registered on the node.
//
// A driver registers through package pluginregistration, and is called at the socket that it named. Each call has a
// connection of its own, so that a driver which starts again is reached at once, and a deadline, so that one which
// hangs delays its caller alone.
//
// https://github.com/container-storage-interface/spec
package csi
