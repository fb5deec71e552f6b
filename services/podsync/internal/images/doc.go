// Package images makes the image of a container available, according to its pull policy and the credentials of the
// pod.
//
// It returns the image reference for the container, or an *Error with the kubelet's reason and message. It records
// the kubelet's events: Pulling, Pulled, Failed, BackOff, ErrImageNeverPull, InspectFailed.
//
// A failed pull is tried again after 10 s, doubling to 5 m, separately for each pod and image. Pulls wait only as
// serializeImagePulls, maxParallelImagePulls, registryPullQPS and registryBurst require, in the order of the
// requests. A pull or a wait stops at once when its context ends, and that is not an image error.
//
// A pull tries the credentials of the pod's secrets, then those of the node, then those of plugins. An image that was
// pulled with another pod's credentials is pulled again with this pod's.
package images
