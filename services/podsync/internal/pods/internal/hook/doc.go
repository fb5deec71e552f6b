// Package hook runs the lifecycle hooks of containers: postStart and preStop with exec, httpGet and sleep.
//
// It returns nil, or an *Error whose text the container status shows. A hook ends when its context ends, and has no
// other deadline, as in the kubelet. Every HTTP response is a success, whatever its status code, because the hook
// has reached its target. A tcpSocket handler fails: the API keeps it only for old objects.
package hook
