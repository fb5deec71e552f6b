package node

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// annotationNodeID says what each CSI driver calls the node, as a JSON object.
const annotationNodeID = "csi.volume.kubernetes.io/nodeid"

// setCSI takes over what CSI drivers say of the node. It leaves other drivers' entries as they are: a driver that has
// not registered with this podsync yet may have registered with an earlier one, or with a kubelet. podsync refuses a
// driver that contradicts a label, so a label that is there stays.
func setCSI(n *v1.Node, list *podsyncv1.CSIDrivers) {
	if len(list.GetDrivers()) == 0 {
		return
	}
	var ids map[string]string
	if err := json.Unmarshal([]byte(n.Annotations[annotationNodeID]), &ids); err != nil || ids == nil {
		ids = map[string]string{} // there is none, or it cannot be read
	}
	for _, d := range list.GetDrivers() {
		if d.GetNodeId() == "" {
			delete(ids, d.GetName())
			continue
		}
		ids[d.GetName()] = d.GetNodeId()
		for key, value := range d.GetTopology() {
			if _, ok := n.Labels[key]; !ok {
				metav1.SetMetaDataLabel(&n.ObjectMeta, key, value)
			}
		}
	}
	if len(ids) == 0 {
		delete(n.Annotations, annotationNodeID)
		return
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return // no map of strings fails
	}
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, annotationNodeID, string(text))
}
