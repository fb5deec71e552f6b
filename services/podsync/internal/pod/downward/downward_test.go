package downward

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func list(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func TestField(t *testing.T) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "n",
			Namespace:   "ns",
			UID:         "u",
			Labels:      map[string]string{"b": "2", "a": `x"y`, "a/c": "1"},
			Annotations: map[string]string{"example.com/Key": "v"},
		},
		Spec: v1.PodSpec{NodeName: "node", ServiceAccountName: "sa"},
	}
	a := Addresses{PodIPs: []string{"10.1.0.2", "fd00::2"}, HostIPs: []string{"10.0.0.1", "fd00::1"}}
	for path, want := range map[string]string{
		"metadata.name": "n", "metadata.namespace": "ns", "metadata.uid": "u",
		"metadata.labels":                         "a=\"x\\\"y\"\na/c=\"1\"\nb=\"2\"",
		"metadata.labels['b']":                    "2",
		"metadata.labels['none']":                 "",
		"metadata.annotations['example.com/Key']": "v",
		"spec.nodeName":                           "node", "spec.serviceAccountName": "sa",
		"status.hostIP": "10.0.0.1", "status.hostIPs": "10.0.0.1,fd00::1",
		"status.podIP": "10.1.0.2", "status.podIPs": "10.1.0.2,fd00::2",
	} {
		got, err := Field(&v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}, p, a)
		if err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"spec.restartPolicy", "metadata.name['x']", "metadata.labels['a b']", "nothing", ""} {
		if got, err := Field(&v1.ObjectFieldSelector{FieldPath: path}, p, a); err == nil {
			t.Errorf("%q = %q, want an error", path, got)
		}
	}
	if _, err := Field(&v1.ObjectFieldSelector{FieldPath: "status.hostIP"}, p, Addresses{}); err == nil {
		t.Error("a node without an address gives one")
	}
	if got, err := Field(&v1.ObjectFieldSelector{FieldPath: "status.podIP"}, p, Addresses{}); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Metadata("status.podIP", p); err == nil {
		t.Error("a file has the pod's address, which the API does not let it have")
	}
}

func TestResource(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{
		Containers: []v1.Container{
			{Name: "a", Resources: v1.ResourceRequirements{Requests: list("cpu", "250m", "memory", "10Mi"),
				Limits: list("cpu", "1500m", "hugepages-2Mi", "4Mi")}},
			{Name: "b"},
		},
		InitContainers: []v1.Container{{Name: "i", Resources: v1.ResourceRequirements{Limits: list("cpu", "3")}}},
	}}
	node := list("cpu", "4", "memory", "8Gi")
	for _, c := range []struct{ container, resource, divisor, want string }{
		{"", "requests.cpu", "", "1"}, // rounded up
		{"a", "requests.cpu", "1m", "250"},
		{"a", "limits.cpu", "1", "2"},
		{"a", "requests.memory", "1Mi", "10"},
		{"a", "limits.memory", "1Gi", "8"}, // the node's
		{"b", "limits.cpu", "1m", "4000"},
		{"b", "requests.cpu", "1", "0"},
		{"a", "limits.hugepages-2Mi", "1Mi", "4"},
		{"b", "limits.hugepages-2Mi", "1Mi", "0"},
		{"i", "limits.cpu", "1", "3"},
		{"b", "limits.ephemeral-storage", "1", "0"},
	} {
		ref := &v1.ResourceFieldSelector{ContainerName: c.container, Resource: c.resource}
		if c.divisor != "" {
			ref.Divisor = resource.MustParse(c.divisor)
		}
		got, err := Resource(ref, p, &p.Spec.Containers[0], node)
		if err != nil || got != c.want {
			t.Errorf("%s %s / %s = %q, %v, want %q", c.container, c.resource, c.divisor, got, err, c.want)
		}
	}
	for _, ref := range []v1.ResourceFieldSelector{{Resource: "limits.pods"}, {Resource: "cpu"}, {Resource: "x.cpu"},
		{ContainerName: "z", Resource: "limits.cpu"}} {
		if got, err := Resource(&ref, p, &p.Spec.Containers[0], node); err == nil {
			t.Errorf("%+v = %q, want an error", ref, got)
		}
	}
	if _, err := Resource(&v1.ResourceFieldSelector{Resource: "limits.cpu"}, p, nil, node); err == nil {
		t.Error("no container, and no error")
	}
	p.Spec.Resources = &v1.ResourceRequirements{Limits: list("cpu", "2")}
	got, err := Resource(&v1.ResourceFieldSelector{ContainerName: "b", Resource: "limits.cpu"}, p, nil,
		Allocatable(p, node))
	if err != nil || got != "2" {
		t.Errorf("with a limit on the pod: %q, %v", got, err)
	}
	if cpu := node["cpu"]; cpu.Value() != 4 {
		t.Error("the node's own list was changed")
	}
}
