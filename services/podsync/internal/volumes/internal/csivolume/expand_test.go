package csivolume

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/growth"
)

const (
	expands  = csi.NodeServiceCapability_RPC_EXPAND_VOLUME
	measures = csi.NodeServiceCapability_RPC_GET_VOLUME_STATS
)

func TestExpand(t *testing.T) {
	for name, can := range map[string][]csi.NodeServiceCapability_RPC_Type{
		"staged": {stages, expands}, "published alone": {expands},
	} {
		t.Run(name, func(t *testing.T) {
			d := csitest.Start(t, can...)
			a := unattached()
			a.secrets = map[string]*v1.Secret{"secrets/expand": {Data: map[string][]byte{"key": []byte("of the size")}}}
			vs := newVolumes(t, t.TempDir(), d, a)
			v := claimed(pod("u1"), "h")
			v.PV.Spec.MountOptions = []string{"noatime"}
			v.PV.Spec.CSI.NodeExpandSecretRef = &v1.SecretReference{Namespace: "secrets", Name: "expand"}
			if _, err := vs.Publish(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			if err := vs.Expand(t.Context(), v, resource.MustParse("2Gi")); err != nil {
				t.Fatal(err)
			}
			r := csitest.Last[*csi.NodeExpandVolumeRequest](t, d)
			m := r.GetVolumeCapability().GetMount()
			if r.CapacityRange.RequiredBytes != 2<<30 || r.CapacityRange.LimitBytes != 0 ||
				r.Secrets["key"] != "of the size" || m.GetFsType() != "ext4" || len(m.GetMountFlags()) != 1 ||
				r.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
				t.Errorf("asked for %v", r)
			}
			release(t, vs, "u1")
		})
	}
}

// As the kubelet does, the driver gets the path of a block volume where it has published it for the pod.
func TestExpandABlockVolume(t *testing.T) {
	d := csitest.Start(t, stages, expands)
	vs := newVolumes(t, t.TempDir(), d, unattached())
	v := block(pod("u1"), "h")
	if _, err := vs.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if err := vs.Expand(t.Context(), v, resource.MustParse("2Gi")); err != nil {
		t.Fatal(err)
	}
	r := csitest.Last[*csi.NodeExpandVolumeRequest](t, d)
	if r.GetVolumeCapability().GetBlock() == nil || r.GetVolumePath() != vs.layout.blockTarget("u1", "pv-h") ||
		r.GetStagingTargetPath() != vs.layout.blockStaging("pv-h") {
		t.Errorf("asked for %v", r)
	}
	release(t, vs, "u1")
}

func TestWhatIsKnownOfAnExpansionThatFails(t *testing.T) {
	kinds := []error{
		growth.ErrNotSupported, growth.ErrInUse, growth.ErrInfeasible, growth.ErrFinal,
	}
	for code, want := range map[codes.Code]error{
		codes.FailedPrecondition: growth.ErrInUse, codes.OutOfRange: growth.ErrInfeasible,
		codes.InvalidArgument: growth.ErrInfeasible, codes.NotFound: growth.ErrInfeasible,
		codes.Internal: growth.ErrFinal, codes.Unavailable: nil, codes.DeadlineExceeded: nil, codes.Aborted: nil,
	} {
		d := csitest.Start(t, expands)
		d.Before(func(_ context.Context, method string) error {
			if method == "NodeExpandVolume" {
				return status.Error(code, "no")
			}
			return nil
		})
		vs := newVolumes(t, t.TempDir(), d, unattached())
		if err := up(t.Context(), vs); err != nil {
			t.Fatal(err)
		}
		err := vs.Expand(t.Context(), claimed(pod("u1"), "h"), resource.MustParse("2Gi"))
		for _, kind := range kinds {
			if got := errors.Is(err, kind); got != errors.Is(want, kind) {
				t.Errorf("%s is %v: %t", code, kind, got)
			}
		}
		text := "Expander.NodeExpand failed to expand the volume : rpc error: code = " + code.String() + " desc = no"
		if err == nil || err.Error() != text {
			t.Errorf("%v, want %s", err, text)
		}
		release(t, vs, "u1")
	}
	vs := newVolumes(t, t.TempDir(), csitest.Start(t), unattached())
	err := vs.Expand(t.Context(), claimed(pod("u1"), "h"), resource.MustParse("2Gi"))
	if !errors.Is(err, growth.ErrNotSupported) ||
		err.Error() != "NodeExpand is not supported by the CSI driver d.example" {
		t.Errorf("a driver that cannot: %v", err)
	}
}

func TestUsage(t *testing.T) {
	d := csitest.Start(t, stages, measures)
	vs := newVolumes(t, t.TempDir(), d, unattached())
	if err := up(t.Context(), vs); err != nil {
		t.Fatal(err)
	}
	if _, err := vs.Usage(t.Context(), "u1", "pv-h"); err == nil {
		t.Error("a driver says nothing")
	}
	d.Measured(
		&csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: 10, Available: 7, Used: 3},
		&csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: 5, Available: -1, Used: 1},
		&csi.VolumeUsage{Unit: csi.VolumeUsage_UNKNOWN, Total: 99},
	)
	got, err := vs.Usage(t.Context(), "u1", "pv-h")
	if want := (Usage{Capacity: 10, Available: 7, Used: 3, Inodes: 5, InodesUsed: 1}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := vs.Usage(t.Context(), "u1", "other"); err == nil {
		t.Error("of a volume that the pod does not have")
	}
	release(t, vs, "u1")

	cannot := newVolumes(t, t.TempDir(), csitest.Start(t), unattached())
	if err := up(t.Context(), cannot); err != nil {
		t.Fatal(err)
	}
	if _, err := cannot.Usage(t.Context(), "u1", "pv-h"); !errors.Is(err, ErrNotMeasured) {
		t.Errorf("a driver that cannot: %v", err)
	}
	release(t, cannot, "u1")
}
