// Package ages remembers when each image was first seen and last used, across restarts.
//
// It measures time by how long the node has run, not by its clock. The time for which the node was off does not count,
// and a clock that jumps makes no image older or younger. Of the time for which imagegc was away, 10 min count at
// most, since it has not seen which images were used then. The kubelet forgets all ages when it starts.
//
// The file is replaced as a whole, so that a crash leaves the old or the new one. A file that cannot be read is set
// aside, and all ages start again, as with a kubelet that starts.
package ages
