package fields

import (
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestEveryKindOfVolumeIsOneOfTheAPI(t *testing.T) {
	kinds := map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[v1.VolumeSource](), reflect.TypeFor[v1.PersistentVolumeSource]()} {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			kinds[name] = true
		}
	}
	for kind := range instead {
		if !kinds[kind] {
			t.Errorf("the API has no volumes of kind %q", kind)
		}
	}
}

func TestVolumeKind(t *testing.T) {
	if got := VolumeKind(v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{}}); got != "iscsi" {
		t.Errorf("got %q", got)
	}
	if got := VolumeKind(v1.VolumeSource{}); got != "" {
		t.Errorf("nothing is of kind %q", got)
	}
	if got := Instead("iscsi"); got != "the CSI driver iscsi.csi.k8s.io" {
		t.Errorf("got %q", got)
	}
}
