// Package childpool does in child processes what may hang in the kernel: calls on paths that may lie on a foreign file
// system, such as a hostPath or what a driver has mounted.
//
// A thread that waits for a file system that does not answer cannot be killed, and a process with such a thread cannot
// end, be upgraded or be restarted. So a service never touches such a path itself. It asks a child, by the name of an
// Operation:
//
//	var makeFolder = childpool.Operation[folder, made]{Name: "make folder"}
//
//	childpool.Handle(table, makeFolder, func(ctx context.Context, f folder) (made, error) { … }) // in the child
//	answer, err := makeFolder.Do(ctx, pool, path, folder{…})                                     // in the service
//
// A Pool runs the children:
//
//   - Calls run at the same time, each in a child of its own. On one path one call runs at a time.
//   - A call has its deadline. A child that misses it is killed, and no caller waits for it. Until the kernel has let
//     it end, further calls on its path fail at once.
//   - A call that takes long gives its place to others, so that some that hang delay no others. The number of children
//     is bounded, those that cannot end included.
//   - Each file system has a lane: the number of calls that run on it is bounded, and so is that of calls on all file
//     systems that are not the node's own.
//   - Calls of an Operation that is Long, which takes long without hanging, have at most half of each bound. They wait
//     for each other in their order, in which namespaces take turns.
//   - An operation that takes long can report how much it has done (Report, WithProgress).
//   - A child holds no lock, no listening socket and no file of the service's. It ends when it is idle, and with the
//     service.
//
// A Session is a child for several calls, which keeps something between them. Its caller decides which calls may run
// (Room), in which order.
//
// An Operation may be killed at any point. The same one must then complete what the killed one has begun.
package childpool
