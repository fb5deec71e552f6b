// Package logkey names the keys of structured log lines.
//
// The keys are those of Kubernetes' structured logging, so that what reads the kubelet's log reads these lines too. A
// key that only one package uses is written where it is used.
//
// https://github.com/kubernetes/community/blob/master/contributors/devel/sig-instrumentation/migration-to-structured-logging.md
package logkey

// What a line speaks of.
const (
	// Pod is "namespace/name", as klog.KObj prints it.
	Pod       = "pod"
	PodUID    = "podUID"
	Container = "container"
	Namespace = "namespace"
	Name      = "name"
	Kind      = "kind"
	Field     = "field"
	Source    = "source"
	Probe     = "probe"
	ID        = "id"
)

// Processes and their connections.
const (
	Service   = "service"
	Component = "component"
	Replica   = "replica"
	Role      = "role"
	Roles     = "roles"
	PID       = "pid"
	UID       = "uid"
	Address   = "address"
	Socket    = "socket"
	Method    = "method"
	Path      = "path"
	Dir       = "dir"
)

// What happened.
const (
	Err     = "err"
	Reason  = "reason"
	Message = "message"
	Line    = "line"
	Type    = "type"
	Attempt = "attempt"
	// After is how long it took.
	After = "after"
	// Delay is how long until the next try.
	Delay = "delay"
)
