// Package gateway shares the container runtime out: podsync alone opens its socket, and
// the other services speak CRI v1 to podsync.
//
// Its inputs are a connection to the runtime, the containers of the node's pods, and one
// listener a role. Its output is CRI v1, whole: requests and answers are passed on byte for
// byte, with deadlines, metadata and error codes, streams included. Only requests that could
// lead to more than their role is for are decoded (see checks in methods.go).
//
// What it guarantees:
//   - a role may call what Methods gives it and nothing else; a method that a newer CRI
//     adds is denied until it is given to somebody;
//   - prober runs in a container only the commands of that container's own exec probes,
//     and no longer than these may take;
//   - a checkpoint goes into the folder for checkpoints, into a new file of the kubelet's name;
//   - nobody sees a verbose status;
//   - who is on the other end is the kernel's word (package unixgrpc): on a role's
//     socket that role and root, and root may there do no more than the role;
//   - a list answers no older question: callers share an answer only if all of them
//     asked before the call was sent to the runtime (see joiner);
//   - podsync's own reads do not come through here, so none is ever shared.
package gateway
