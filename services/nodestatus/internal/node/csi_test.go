package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

func TestWhatCSIDriversSayOfTheNode(t *testing.T) {
	driver := func(name, id string, topology map[string]string) *podsyncv1.CSIDrivers_Driver {
		return &podsyncv1.CSIDrivers_Driver{Name: name, NodeId: id, Topology: topology}
	}
	for name, c := range map[string]struct {
		annotation string
		drivers    []*podsyncv1.CSIDrivers_Driver
		want       string
		labels     map[string]string
	}{
		"nothing is known": {annotation: `{"a":"1"}`, want: `{"a":"1"}`},
		"the first": {drivers: []*podsyncv1.CSIDrivers_Driver{driver("a", "1", map[string]string{"zone": "z"})},
			want: `{"a":"1"}`, labels: map[string]string{"zone": "z"}},
		"others stay": {annotation: `{"a":"1","b":"2"}`, drivers: []*podsyncv1.CSIDrivers_Driver{driver("b", "3", nil)},
			want: `{"a":"1","b":"3"}`},
		"removed": {annotation: `{"a":"1","b":"2"}`, drivers: []*podsyncv1.CSIDrivers_Driver{driver("b", "", nil)},
			want: `{"a":"1"}`},
		"the last is removed": {annotation: `{"b":"2"}`, drivers: []*podsyncv1.CSIDrivers_Driver{driver("b", "", nil)}},
		"a label that is there stays": {
			drivers: []*podsyncv1.CSIDrivers_Driver{driver("a", "1", map[string]string{"kept": "no"})}, want: `{"a":"1"}`},
		"the annotation is broken": {annotation: `{`, drivers: []*podsyncv1.CSIDrivers_Driver{driver("a", "1", nil)},
			want: `{"a":"1"}`},
		"the annotation is null": {annotation: `null`, drivers: []*podsyncv1.CSIDrivers_Driver{driver("a", "1", nil)},
			want: `{"a":"1"}`},
	} {
		t.Run(name, func(t *testing.T) {
			n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kept": "yes"}}}
			if c.annotation != "" {
				metav1.SetMetaDataAnnotation(&n.ObjectMeta, annotationNodeID, c.annotation)
			}
			setCSI(n, &podsyncv1.CSIDrivers{Drivers: c.drivers})
			if got := n.Annotations[annotationNodeID]; got != c.want {
				t.Errorf("annotation %s, want %s", got, c.want)
			}
			labels := map[string]string{"kept": "yes"}
			for key, value := range c.labels {
				labels[key] = value
			}
			if diff := cmp.Diff(labels, n.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}
