// Package pullrecords decides whether a pod may use an image that is on the node already.
//
// It records with which credentials each image was pulled, in the kubelet's files below image_manager in its root
// folder, so that a node can be handed over in both directions. Before a pull begins, a file in pulling says so. After
// the pull, a file in pulled has the credentials, and the first one is removed. So a crash in between never makes a
// pulled image look like one that was on the node before. The same holds for a pull with an unknown result: its file
// stays until the runtime was asked about the image.
//
// What cannot be read or decided requires a pull, in which the registry decides.
package pullrecords
