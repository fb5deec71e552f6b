// Package image makes the image of a container available, according to its pull policy and the credentials of the
// pod.
//
// It returns the image reference for the container, or an *Error with the kubelet's reason and message. It records
// the kubelet's events: Pulling, Pulled, Failed, BackOff, ErrImageNeverPull, InspectFailed.
//
// A failed pull is tried again after 10 s, doubling to 5 m, separately for each pod and image. Pulls wait only as
// serializeImagePulls, maxParallelImagePulls, registryPullQPS and registryBurst require, in the order of the
// requests. A pull or a wait stops at once when its context ends, and that is not an image error. Not built:
// credential provider plugins, and the check that a pod may use an image that was pulled with another pod's secrets.
package image
