// Package pleg turns what the container runtime does into hints that a pod's containers changed: the
// pod lifecycle event generator.
//
// Its input is the runtime, read through the CRI gateway: the event stream, which is fast and may
// fail, and a relist, which is the net under it. Without the stream the relist runs once a second,
// as the kubelet's does; while the stream proves right, every 10 s at the slowest. A stream that
// keeps silent about an exit is found out by the relist and replaced.
//
// Its outputs are hints on microlet.evt.pleg.lifecycle.<podUID>, told to podsync by gRPC instead
// while the bus is away or hangs; RUNTIME/relist, put at each relist's end and when the stream comes
// or goes; metrics with the kubelet's names; and the gRPC health service "microlet.pleg.relist",
// which serves while a relist has succeeded within 3 minutes.
//
// It guarantees that an exit is told within 12 s whatever the stream does, and at once while it
// works. It keeps nothing: after a restart it compares with what it first sees, and hints at the pods
// in which something may have ended meanwhile.
package pleg
