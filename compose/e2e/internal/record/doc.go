// Package record keeps a gapless record of all changes of a cluster's objects.
//
// It records each change of every pod and event, of the node and of its Lease, in order and with its time. Tests
// check parts of the record and wait for states. It reads from etcd, because the scenarios stop the API server: a
// watch there cannot be resumed ("too old resource version"), and a list would leave a gap in which a pod may have
// been unready. Revisions are the resource versions of the objects.
//
// The record is complete up to the point that a successful Sync has passed. If a watch cannot be resumed where it
// broke, every later call returns an error.
package record
