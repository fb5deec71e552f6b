// Package podgen makes random pods that are valid, and says which fields of a pod they cover.
//
// Its input is a seed, the node's name and a folder of the host that pods may mount. Its output is
// pods, and the objects that they name. It guarantees that the same seed gives the same pods, that
// the API server accepts each, that each comes to rest by itself (it runs for ever, or ends, and no
// container of it restarts for ever), and that a deck of traits is dealt in turn: as many pods as
// there are traits use every one of them.
package podgen
