// Package pleg is the pod lifecycle event generator: it turns runtime events into hints that containers of a pod
// changed.
//
// It reads the runtime through the CRI gateway: the event stream, which is fast but may fail, and a relist. The
// relist runs every second without the stream and up to every 10 s with it. If the relist finds an exit that the
// stream missed, pleg replaces the stream.
//
// podsync reads the hints from a stream (PlegService.WatchPods), so they need no bus. The messages of the stream show
// podsync that pleg's loop turns and that its relists succeed. The end of the stream shows that pleg has ended. pleg
// also publishes each hint on microlet.evt.pleg.lifecycle.<podUID>, for other readers. It puts RUNTIME/relist at the
// end of each relist and when the runtime's event stream starts or ends. The gRPC health service "microlet.pleg.relist"
// serves while a relist has succeeded within 3 minutes. A hint for an exit comes at once while the event stream works,
// and within 12 s in any case. pleg stores nothing: after a restart it sends hints for all pods in which a container
// may have ended meanwhile.
package pleg
