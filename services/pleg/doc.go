// Package pleg is the pod lifecycle event generator: it turns runtime events into hints that containers of a pod
// changed.
//
// It reads the runtime through the CRI gateway: the event stream, which is fast but may fail, and a relist. The
// relist runs every second without the stream and up to every 10 s with it. If the relist finds an exit that the
// stream missed, pleg replaces the stream.
//
// pleg sends a hint on microlet.evt.pleg.lifecycle.<podUID>, or by gRPC to podsync if the bus is down or hangs. It
// puts RUNTIME/relist at the end of each relist and when the stream starts or ends. The gRPC health service
// "microlet.pleg.relist" serves while a relist has succeeded within 3 minutes. A hint for an exit comes at once
// while the stream works, and within 12 s in any case. pleg stores nothing: after a restart it sends hints for all
// pods in which a container may have ended meanwhile.
package pleg
