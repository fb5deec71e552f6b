// Package userns gives each pod with hostUsers: false a range of user and group IDs of the host.
//
// No two pods have an ID in common. A pod keeps its range as long as it has a folder: the range is in a file there, in
// the kubelet's form, so that it outlives podsync and a handover in either direction. If the runtime reports which
// range a sandbox has, this counts and not the file. Where the runtime cannot show the sandbox, the file counts. A file
// that is damaged, or that has a range of another pod, is written again with another range when the pod gets a new
// sandbox.
package userns
