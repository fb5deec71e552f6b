// Package devices shows what becomes of pods that ask for devices, with a device plugin that does what a scenario asks
// for.
package devices
