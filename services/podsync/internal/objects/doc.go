// Package objects gets what pods name in the API: Secrets, ConfigMaps, service account
// tokens and the Services of their environment.
//
// Inputs are a client that acts as the node (which the Node authorizer lets read the
// objects of its own pods, by name) and the pods themselves. Outputs are the objects,
// with the API's errors unchanged, so that "not found" reads as the kubelet's.
//
// It guarantees that no call takes longer than its time-out, and that many pods which start
// together with the same object cause one request. A pod that starts sees what its objects
// were at that moment or later; one whose object another pod has had watched for a while sees
// it as far as that watch has come. With strategy Watch a pod is told at once when an object
// that it names has changed, and an object that says it is immutable is not watched on.
package objects
