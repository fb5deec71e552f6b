// Package manager writes the statuses of pods to the API server.
//
// The newest status of each pod arrives, however long the API server is down. The statuses of one pod arrive in
// order, and different pods do not wait for each other. A status that the API server already has is not written
// again. Only podsync writes the status of a pod: if another client changes one of its fields, the change is
// overwritten after 10 s. Conditions of other owners stay. A pod is deleted from the API only after its final status
// has arrived. The reports of a pod end when the API server itself says that there is no such pod, and begin again if
// the watch brings it.
package manager
