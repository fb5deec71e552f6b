// Package evictor keeps the node from running out of memory, disk and process IDs.
//
// Every 10 s it reads the kubelet's eviction signals itself, so that it works while stats is down. It puts
// NODE/pressure. If a threshold is met, it asks podsync to remove dead containers and imagegc to remove unused images,
// and then asks podsync to evict one pod, which it chooses as the kubelet does. The kernel wakes it earlier if memory
// runs out. A pod that exceeds a limit of local storage by the figures of stats is measured before it is evicted.
//
// A signal that cannot be read, or that cannot be, is left out: evictor never evicts because of it. When evictor is
// down, no pod is evicted. The last pressure holds for some minutes, and is then unknown.
package evictor
