// Package objects gets what pods name in the API: Secrets, ConfigMaps, service account
// tokens and the Services of their environment.
//
// Inputs are a client that acts as the node (which the Node authorizer lets read the
// objects of its own pods, by name) and the pods themselves. Outputs are the objects,
// with the API's errors unchanged, so that "not found" reads as the kubelet's.
//
// It guarantees that no call takes longer than its time-out, that many pods which start
// together with the same object cause one request, and that a pod which starts sees what
// its objects were at that moment or later, never something older.
package objects
