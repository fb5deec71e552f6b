package allocation

import (
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/allocation/internal/store"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// The kubelet's files in the root folder.
const (
	grantedFile  = "allocated_pods_state"
	actuatedFile = "actuated_pods_state"
)

// reasonFileUnusable is the reason of the Event about a file that could not be read. The kubelet does not start then.
const reasonFileUnusable = "PodResourcesFileUnusable"

// records is one of the files.
type records interface {
	// Get returns what the file has of a pod.
	Get(uid types.UID) (pod.Resources, bool)
	// Write gives these pods other resources, or none to those with nil, and returns when that is on the disk. Those of
	// which it returns an error have what they had.
	Write(changes map[types.UID]*pod.Resources) map[types.UID]error
	// UIDs returns the pods of the file.
	UIDs() []types.UID
}

// open opens a file. Of one that cannot be used, or of which a part cannot, the operator learns, and podsync goes on
// with what is left: the status of a pod shows what it was granted, and the runtime what it was given.
func open(o *Options, name string) records {
	s, problem := store.Open(filepath.Join(o.RootDir, name))
	if problem != nil {
		o.Log.Error("resources of pods cannot be read, going by what their status shows", logkey.Err, problem)
		o.Events.Eventf(o.Node, v1.EventTypeWarning, reasonFileUnusable, "Resources of pods cannot be read: %v", problem)
	}
	return s
}
