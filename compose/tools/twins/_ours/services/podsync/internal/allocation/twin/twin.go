// Package twin opens what is inside the room.
package twin

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/allocation/internal/store"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// PodResources opens the type of package pod.
type PodResources = pod.Resources

// Store opens the type of package store.
type Store = store.Store

// Open opens Open of package store.
func Open(path string) (*Store, error) { return store.Open(path) }

// File is the file of a store with these pods.
func File(pods map[types.UID]PodResources) (string, error) { return store.TwinFile(pods) }

// Read is what a store reads in a file with this data, and the files that it would write.
func Read(data string) (pods map[types.UID]PodResources, same, changed string, err error) {
	return store.TwinRead(data)
}
