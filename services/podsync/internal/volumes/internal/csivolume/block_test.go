package csivolume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

// devices map files: what the driver publishes here is no device.
type devices struct{}

func (devices) Map(_ context.Context, m blockdevice.Mapping) (blockdevice.State, error) {
	return blockdevice.State{}, errors.Join(os.MkdirAll(m.Volume, 0o700),
		os.WriteFile(filepath.Join(m.Volume, string(m.Pod)), nil, 0o600))
}

func (devices) Unmap(_ context.Context, m blockdevice.Mapping) error {
	if err := os.RemoveAll(filepath.Join(m.Volume, string(m.Pod))); err != nil {
		return err
	}
	_ = os.Remove(m.Volume) // which others may have
	return nil
}

func block(pod *v1.Pod, handle string) *Volume {
	v := claimed(pod, handle)
	v.PV.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	return v
}

func TestTwoPodsHaveOneBlockVolume(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	a := unattached()
	a.driver.Spec.PodInfoOnMount = new(true)
	vs := newVolumes(t, root, d, a)
	for _, uid := range []string{"u1", "u2"} {
		published, err := vs.Publish(t.Context(), block(pod(uid), "h"))
		if err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(root, "pods", uid, "volumeDevices/kubernetes.io~csi/pv-h")
		target := filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv-h", uid)
		if published != (Published{Device: link}) {
			t.Errorf("published %+v, want %s", published, link)
		}
		if to, err := os.Readlink(link); err != nil || to != target {
			t.Errorf("the link leads to %q, %v", to, err)
		}
		r := csitest.Last[*csi.NodePublishVolumeRequest](t, d)
		if r.TargetPath != target || r.VolumeCapability.GetBlock() == nil || r.VolumeContext[keyPodUID] != uid {
			t.Errorf("published with %v", r)
		}
	}
	r := csitest.Last[*csi.NodeStageVolumeRequest](t, d)
	if want := filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices/staging/pv-h"); r.StagingTargetPath != want ||
		r.VolumeCapability.GetBlock() == nil {
		t.Errorf("staged with %v", r)
	}
	// The kubelet's words, and no other.
	text, err := os.ReadFile(filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices/pv-h/data/vol_data.json"))
	want := `{"driverName":"d.example","volumeHandle":"h","specVolID":"pv-h","nodeName":"n","attachmentID":"` +
		attachmentName(device{driverName, "h"}, "n") + `"}` + "\n"
	if err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	endOfTwoPods(t, vs, d)
}

// TestABlockVolumeThatNobodyTellsOf: a kubelet was killed when it had published a volume, and removed the pod's folder
// since.
func TestABlockVolumeThatNobodyTellsOf(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	if _, err := newVolumes(t, root, d, unattached()).Publish(t.Context(), block(pod("u1"), "h")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "pods")); err != nil {
		t.Fatal(err)
	}
	// The driver's file is the only trace of another pod.
	target := filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv-h/u2")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unstageAll(t, newVolumes(t, root, d, unattached()))
	if found := append(left(t, root), d.Left()...); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}

// TestABlockVolumeOfADriverThatStagesNothing has its file of data all the same.
func TestABlockVolumeOfADriverThatStagesNothing(t *testing.T) {
	d := csitest.Start(t)
	root := t.TempDir()
	vs := newVolumes(t, root, d, unattached())
	if _, err := vs.Publish(t.Context(), block(pod("u1"), "h")); err != nil {
		t.Fatal(err)
	}
	if r := csitest.Last[*csi.NodePublishVolumeRequest](t, d); r.StagingTargetPath != "" {
		t.Errorf("published from %s", r.StagingTargetPath)
	}
	release(t, vs, "u1")
	if got := d.Calls(); !slices.Equal(got, []string{"NodePublishVolume h", "NodeUnpublishVolume h"}) {
		t.Errorf("calls: %q", got)
	}
	if found := left(t, root); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
}

// TestNamesThatAreFoldersOfAllVolumes would have one volume's end remove what is staged of the others.
func TestNamesThatAreFoldersOfAllVolumes(t *testing.T) {
	d := csitest.Start(t, stages)
	for _, name := range []string{"staging", "publish"} {
		v := block(pod("u1"), "h")
		v.PV.Name = name
		_, err := newVolumes(t, t.TempDir(), d, unattached()).Publish(t.Context(), v)
		var step *Error
		if !errors.As(err, &step) || step.Step != mapSteps.stage || !strings.Contains(err.Error(), "give it another name") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzVolumeData(f *testing.F) {
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h","specVolID":"pv"}`))
	f.Add([]byte(`{"driverName":"../d"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, dataFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := load(dir)
		if err == nil && (d.Driver == "" || d.Handle == "") {
			t.Errorf("%+v of %q", d, text)
		}
		if err != nil {
			return
		}
		if err := d.save(dir); err != nil {
			t.Fatal(err)
		}
		if again, err := load(dir); err != nil || again != d {
			t.Errorf("%+v, %v; want %+v", again, err, d)
		}
	})
}

// TestUsageOfABlockVolume: the driver is asked at the path at which it published the device, as by the kubelet.
func TestUsageOfABlockVolume(t *testing.T) {
	d := csitest.Start(t, stages, measures)
	vs := newVolumes(t, t.TempDir(), d, unattached())
	if _, err := vs.Publish(t.Context(), block(pod("u1"), "h")); err != nil {
		t.Fatal(err)
	}
	d.Measured(&csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: 10})
	got, err := vs.BlockUsage(t.Context(), "u1", "pv-h")
	if want := (Usage{Capacity: 10}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := vs.BlockUsage(t.Context(), "u2", "pv-h"); err == nil {
		t.Error("of a pod that does not have the volume")
	}
	if _, err := vs.BlockUsage(t.Context(), "u1", "local"); !errors.Is(err, ErrNotMeasured) {
		t.Errorf("of a volume that is no driver's: %v", err)
	}
	release(t, vs, "u1")
}
