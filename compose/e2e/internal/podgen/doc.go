// Package podgen generates random valid pods.
//
// It reports which fields they cover. The same seed gives the same pods, and the objects that they reference. The API
// server accepts each pod. Each pod reaches a stable state: it runs forever or ends, and no container restarts forever.
// The traits are dealt in turn, so as many pods as there are traits use every trait.
package podgen
