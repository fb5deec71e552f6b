// Package csinode shows the cluster which CSI drivers the node has.
//
// The node's CSINode has for each driver what the driver calls the node, how many volumes it takes, and the keys of the
// topology, whose values are labels of the Node. The forms and errors are the kubelet's.
package csinode
