// Package statusmanager delivers pods' statuses to the API server.
//
// Input: the newest status of each pod, the pods as the watch brings them. Output: patches of the status subresource
// and, at the end, the pod's deletion.
//
// Guarantees: podsync alone writes a pod's status. The newest status of each pod arrives, however long the API server is
// away. Statuses of one pod arrive in order, and those of different pods do not wait for each other. A status that the API
// server has already is not written again. What another writes into a field of ours is written over after 10 s, whenever
// it came; conditions of others are left alone. A pod is deleted from the API only after its final status has arrived.
package statusmanager
