// Package record keeps a record without gaps of what a cluster's objects went through.
//
// Input: the address of the cluster's etcd and the node's name. Output: each change of every pod and
// event, of the node and of its Lease, in order, with the time at which it was seen; judgements over a
// part of it; and a way to wait for a state.
//
// It reads from etcd and not from the API server, because the scenarios stop the API server: a watch
// there cannot be resumed afterwards (its cache begins anew and answers "too old resource version"),
// and a list instead would leave a gap in which a pod may have been unready. Revisions are the
// objects' resource versions.
//
// Guarantees: what a Sync that returned without error has passed is complete up to then. A watch that
// cannot be resumed where it broke is an error of every later call.
package record
