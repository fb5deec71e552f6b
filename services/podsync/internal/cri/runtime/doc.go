// Package runtime calls the container runtime over CRI v1.
//
// It reads the State of a pod, and runs, starts, stops and removes sandboxes and containers.
//
//   - A read reflects the runtime at a moment after the request. Only facts that cannot change are cached: the end
//     of an exited container, and the network of a sandbox.
//   - Every call has a deadline. If the runtime is down, a call fails at once, and the connection is tried again
//     twice a second.
//   - Expensive calls are limited (package calllimit).
//   - Stopping or removing something that does not exist succeeds.
package runtime
