package podsync

import (
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/api"
)

// CheckManifest returns what a node of this version refuses of a pod, whatever else runs there: what is invalid, and
// which fields are not supported. A running podsync answers with the admission too; see ExplainService.CheckPod.
func CheckManifest(data []byte, nodeName string, static bool) *podsyncv1.CheckPodResponse {
	return api.CheckManifest(data, nodeName, static)
}
