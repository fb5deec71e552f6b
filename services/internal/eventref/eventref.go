// Package eventref names the objects that Events are about, in the way in which the kubelet names them.
package eventref

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/podutil"
)

// Node is this node. As with the kubelet its UID is its name, so that an Event needs no Node object.
func Node(name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)}
}

// Pod is a pod as a whole.
func Pod(p *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{
		Kind:            "Pod",
		APIVersion:      "v1",
		Namespace:       p.Namespace,
		Name:            p.Name,
		UID:             p.UID,
		ResourceVersion: p.ResourceVersion,
	}
}

// Container is one container of a pod, of whatever kind.
func Container(p *v1.Pod, name string) *v1.ObjectReference {
	list := "containers"
	switch {
	case podutil.IsInit(&p.Spec, name):
		list = "initContainers"
	case podutil.IsEphemeral(&p.Spec, name):
		list = "ephemeralContainers"
	}
	ref := Pod(p)
	ref.FieldPath = "spec." + list + "{" + name + "}"
	return ref
}
