// Package hook runs the lifecycle hooks of containers: postStart and preStop with exec,
// httpGet and sleep.
//
// Inputs: a handler, the container that it belongs to, a way into the container. Output:
// nil, or an *Error whose text is what the container's status shows. Guarantees: a hook
// ends when its context does, and has no other deadline, as with the kubelet; an HTTP
// answer of any status is a success, since the hook has reached what it was to reach; a
// tcpSocket handler, which the API keeps for old objects only, fails.
package hook
