// Package imagegc keeps the images of the node from filling its disk.
//
// Every 5 min it looks at the file system that holds the images. If its use is above imageGCHighThresholdPercent, it
// removes unused images, the least recently used first, until the use is at imageGCLowThresholdPercent. Images that are
// unused for imageMaximumGCAge go at any use of the disk. evictor may request the removal of all unused images over
// gRPC. It calls the runtime through podsync's CRI gateway, and reads in PODS which images pods are about to use.
//
// It keeps the ages of images in a file, so that they survive restarts. It puts NODE/images, from which nodestatus
// fills the Node's status.images. When it is down, no image is removed, and the Node lists the images of before.
package imagegc
