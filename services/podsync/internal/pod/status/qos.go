package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// qos is the class that the API gave the pod at its creation; pods of other sources have none there, and it follows
// from their resources.
func (g *generator) qos() v1.PodQOSClass {
	if g.in.QOS != "" {
		return g.in.QOS
	}
	return podutil.QOSClass(g.pod)
}
