// Package kubeletconfig turns the kubelet's command line and configuration files into one validated configuration.
//
// It reads the command line of kubelet 1.37, the file of --config and the drop-ins of --config-dir. The result is a
// Config or a list of all errors, each with the field or flag, its value, where it was set, and what to do.
// Precedence is the kubelet's: defaults, file, drop-ins in lexical order, flags. Feature gates of all of them are
// merged by key (https://github.com/kubernetes/kubernetes/issues/56171, KEP-3983). It refuses an unknown or
// duplicate key and suggests the nearest known key.
//
// A setting that is not built is never silently ignored: it stops the start or causes a Warning. support_table.go
// lists which. The supervisor writes the Config once (Config.WriteResolved), and the services read it
// (ReadResolved). Every pointer that the kubelet defaults is set.
package kubeletconfig
