package criconfig

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

func TestGroupsOfVolumes(t *testing.T) {
	volumes := map[string]volume.Mounted{
		"a": {Group: "1234"}, "b": {Group: "1234"}, "c": {Group: "7"}, "d": {}, "e": {Group: "staff"},
	}
	in := &ContainerInput{Volumes: volumes, ImageUID: new(int64)}
	for name, c := range map[string]struct {
		of   *v1.PodSecurityContext
		want []int64
	}{
		"a pod without groups":  {nil, []int64{7, 1234}},
		"a pod with one itself": {&v1.PodSecurityContext{SupplementalGroups: []int64{1234, 5}}, []int64{1234, 5, 7}},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{SecurityContext: c.of, Containers: []v1.Container{{Name: "c"}}}}
		got, err := containerSecurity(p, &p.Spec.Containers[0], in, &Node{})
		if err != nil || !slices.Equal(got.GetSupplementalGroups(), c.want) {
			t.Errorf("%s has %v, %v", name, got.GetSupplementalGroups(), err)
		}
	}
}
