package twins

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	kuberesource "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"

	"github.com/microlet/microlet/services/podsync/internal/pod/downward"
)

// projected is a file of a volume, which is about its pod.
type projected struct {
	Pod         *v1.Pod
	Allocatable v1.ResourceList
	Of          v1.EnvVarSource
}

var _ = register(Pair[projected, message]{
	Name: "downward",
	Generate: func(s *Source) projected {
		in := projected{Pod: drawNamedPod(s)}
		in.Allocatable = drawResources(s, []string{"2", "3500m"}, []string{"8Gi", "7777777k"}, 90)
		in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, drawAmounts(s, "c0"))
		in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, drawAmounts(s, "i0"))
		in.Of = *drawValueFrom(s, &surroundings{})
		if in.Of.FieldRef == nil && in.Of.ResourceFieldRef == nil {
			in.Of = v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: OneOf(s, "metadata.name", "metadata.labels",
				"metadata.annotations", "metadata.annotations['app.x/y']", "metadata.labels['']", "metadata.labels['a b']",
				"metadata.annotations['a[b]c']", "metadata.labels[app]", "['app']", "metadata.name['app']", "metadata.none")}}
		}
		return in
	},
	Upstream: func(in projected) message {
		if ref := in.Of.ResourceFieldRef; ref != nil {
			return textMessage(kuberesource.ExtractResourceValueByContainerNameAndNodeAllocatable(ref, in.Pod,
				ref.ContainerName, in.Allocatable))
		}
		return textMessage(fieldpath.ExtractFieldPathAsString(in.Pod, in.Of.FieldRef.FieldPath))
	},
	Ours: func(in projected) message {
		if ref := in.Of.ResourceFieldRef; ref != nil {
			return textMessage(downward.Resource(ref, in.Pod, nil, in.Allocatable))
		}
		return textMessage(downward.Metadata(in.Of.FieldRef.FieldPath, in.Pod))
	},
	Branches: func(in projected, out message) []string {
		switch {
		case out.Err != "":
			return []string{"is an error"}
		case in.Of.ResourceFieldRef != nil:
			return []string{"an amount"}
		case strings.Contains(out.Text, "\n"):
			return []string{"a map"}
		}
		return []string{"a field"}
	},
	Wanted: []string{"is an error", "an amount", "a map", "a field"},
	Break:  func(_ projected, out *message) { out.Text = strings.TrimSuffix(out.Text, "1") },
})

func textMessage(text string, err error) message {
	if err != nil {
		return message{Err: err.Error()}
	}
	return message{Text: text}
}
