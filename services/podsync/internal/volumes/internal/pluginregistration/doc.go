// Package pluginregistration registers the plugins whose sockets are in the folder plugins_registry.
//
// A plugin serves the registration API on a socket there. It is asked for its type, name, endpoint and versions, its
// type's Handler takes it, and it gets the result. It is taken back once its socket is gone. Each plugin has a
// goroutine of its own: one that hangs delays no other.
//
// https://github.com/kubernetes/kubelet/blob/master/pkg/apis/pluginregistration/v1/api.proto
package pluginregistration
