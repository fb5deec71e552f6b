package api

import (
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/api/internal/explain"
)

// CheckManifest returns what a node of this version refuses of a pod, whatever else runs there: what is invalid, and
// which fields are not supported.
func CheckManifest(data []byte, nodeName string, static bool) *podsyncv1.CheckPodResponse {
	return explain.Check(data, explain.Origin{NodeName: nodeName, Static: static})
}
