// Package runtime is podsync's way to the container runtime.
//
// Its job: read what the runtime has of a pod, and run, start, stop and remove
// sandboxes and containers.
//
// Inputs: a CRI v1 endpoint (containerd, CRI-O), by Dial. Outputs: pod.State values,
// and the effects on the runtime.
//
// What it guarantees:
//   - a read reflects the runtime at a moment after it was asked for. Only what can
//     not change any more is remembered: the end of an exited container, the network of
//     a sandbox;
//   - every call has a deadline; none waits for a runtime that is not there: it fails
//     at once, and the connection is tried again twice a second;
//   - the calls that make a runtime work hard are bounded (package calllimit);
//   - stopping or removing what is gone is a success.
package runtime
