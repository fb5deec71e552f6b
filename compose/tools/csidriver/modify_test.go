package main

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Parameters that are not named as mutable are refused, at the volume's begin and later.
func TestOnlyMutableParametersChange(t *testing.T) {
	m := newMounts(t)
	c := controller{driver: m.driver}
	c.can.modify, c.can.mutable = true, []string{"speed"}
	for _, test := range []struct {
		parameters map[string]string
		code       codes.Code
	}{
		{map[string]string{"speed": "9"}, codes.OK},
		{map[string]string{"speed": "9", "color": "red"}, codes.InvalidArgument},
	} {
		_, err := c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
			VolumeId: m.id, MutableParameters: test.parameters,
		})
		if status.Code(err) != test.code {
			t.Errorf("a change of %v gives %v", test.parameters, err)
		}
		_, err = c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "new", VolumeCapabilities: []*csi.VolumeCapability{m.capability}, MutableParameters: test.parameters,
		})
		if status.Code(err) != test.code {
			t.Errorf("a volume with %v gives %v", test.parameters, err)
		}
	}
	is, err := m.store.get(m.id)
	if err != nil || is.Mutable["speed"] != "9" || len(is.Mutable) != 1 {
		t.Errorf("the volume has %v, %v", is.Mutable, err)
	}
}

// With -check-volume-lifecycle, a volume is deleted only when no node has it.
func TestAVolumeInUseStays(t *testing.T) {
	m := newMounts(t)
	c := controller{driver: m.driver}
	c.can.keepInUse = true
	m.stage(t)
	if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: m.id}); status.Code(err) !=
		codes.FailedPrecondition {
		t.Errorf("staged, its deletion gives %v", err)
	}
	m.release(t)
	if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: m.id}); err != nil {
		t.Errorf("unstaged, its deletion gives %v", err)
	}
}
