// Package image makes the image of a container present, as the container's pull policy
// and the pod's credentials allow.
//
// Its inputs are a pod, one of its containers and the pod's pull secrets. Its outputs
// are the reference to create the container with, or an *Error whose reason and message
// are the kubelet's, and the kubelet's events: Pulling, Pulled, Failed, BackOff,
// ErrImageNeverPull, InspectFailed.
//
// What it guarantees:
//   - a failed pull is tried again after 10 s, then twice as long each time up to 5 m,
//     for each pod and image on its own;
//   - pulls wait for each other as serializeImagePulls and maxParallelImagePulls say, in
//     the order in which they asked, and for nothing else; whoever waits or pulls stops
//     at once when its context ends, and that is no failure of the image;
//   - pulls start no faster than registryPullQPS and registryBurst.
//
// What it does not do: exec credential providers, and the check that a pod may use an
// image which another one pulled with its secrets.
package image
