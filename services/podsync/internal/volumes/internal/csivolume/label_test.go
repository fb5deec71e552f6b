package csivolume

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

const (
	labelA = "system_u:object_r:container_file_t:s0:c1,c2"
	labelB = "system_u:object_r:container_file_t:s0:c3,c4"

	waitsForOther = `waiting for unmount of volume "kubernetes.io/csi/d.example^h", because it is already mounted to a ` +
		`different pod with a different SELinux label`
)

// selinuxVolumes is a process on a node with SELinux.
func selinuxVolumes(t *testing.T, root string, d *csitest.Driver) *Volumes {
	t.Helper()
	vs := newVolumes(t, root, d, unattached())
	vs.o.SELinux = true
	return vs
}

// labeled is the volume h for a pod, to be mounted with a label.
func labeled(uid, label string) *Volume {
	v := claimed(pod(uid), "h")
	v.Label = label
	return v
}

func publish(t *testing.T, vs *Volumes, v *Volume, want string) {
	t.Helper()
	published, err := vs.Publish(t.Context(), v)
	if err != nil || published.Label != want {
		t.Errorf("pod %s: %+v, %v, want the label %q", v.Pod.UID, published, err, want)
	}
}

func flags(c *csi.VolumeCapability) []string { return c.GetMount().GetMountFlags() }

// noted is the label in a vol_data.json, as the kubelet reads it.
func noted(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "vol_data.json"))
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	if err := json.Unmarshal(text, &data); err != nil {
		t.Fatal(err)
	}
	label, ok := data["seLinuxMountContext"]
	if ok && label == "" {
		t.Errorf("%s says that there is a label, but not which", dir)
	}
	return label
}

func TestADriverMountsWithTheLabel(t *testing.T) {
	d := csitest.Start(t, stages, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	root := t.TempDir()
	vs := selinuxVolumes(t, root, d)
	v := labeled("u1", labelA)
	v.PV.Spec.MountOptions = append(make([]string, 0, 2), "noatime") // which has room for one more
	publish(t, vs, v, labelA)
	want := []string{"noatime", `context="` + labelA + `"`}
	stage, publish := csitest.Last[*csi.NodeStageVolumeRequest](t, d), csitest.Last[*csi.NodePublishVolumeRequest](t, d)
	if !slices.Equal(flags(stage.VolumeCapability), want) || !slices.Equal(flags(publish.VolumeCapability), want) {
		t.Errorf("staged with %q, published with %q", flags(stage.VolumeCapability), flags(publish.VolumeCapability))
	}
	if len(v.PV.Spec.MountOptions) != 1 || v.PV.Spec.MountOptions[:2][1] != "" {
		t.Errorf("the PersistentVolume's options were changed: %q", v.PV.Spec.MountOptions[:2])
	}
	for _, dir := range []string{vs.layout.device(v.device()), vs.layout.volume("u1", "pv-h")} {
		if got := noted(t, dir); got != labelA {
			t.Errorf("%s has the label %q", dir, got)
		}
	}
	// What grows is mounted already: as with the kubelet, the label is not repeated.
	if err := vs.Expand(t.Context(), v, *v.PV.Spec.Capacity.Storage()); err != nil {
		t.Fatal(err)
	}
	expand := csitest.Last[*csi.NodeExpandVolumeRequest](t, d)
	if got := flags(expand.VolumeCapability); !slices.Equal(got, []string{"noatime"}) {
		t.Errorf("expanded with %q", got)
	}
	release(t, vs, "u1")
}

// Nothing of labels is to be seen on a node without SELinux, nor of volumes without one.
func TestNoLabel(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		d := csitest.Start(t, stages)
		vs := newVolumes(t, t.TempDir(), d, unattached())
		vs.o.SELinux = enabled
		v := labeled("u1", "")
		publish(t, vs, v, "")
		stage, publish := csitest.Last[*csi.NodeStageVolumeRequest](t, d), csitest.Last[*csi.NodePublishVolumeRequest](t, d)
		if len(flags(stage.VolumeCapability))+len(flags(publish.VolumeCapability)) > 0 {
			t.Errorf("staged with %q, published with %q", flags(stage.VolumeCapability), flags(publish.VolumeCapability))
		}
		if label := noted(t, vs.layout.device(v.device())) + noted(t, vs.layout.volume("u1", "pv-h")); label != "" {
			t.Errorf("noted: %q", label)
		}
		release(t, vs, "u1")
	}
}

// Without SELinux the labels in files do not count: another boot may have had it.
func TestLabelsOfABootWithSELinux(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	publish(t, selinuxVolumes(t, root, d), labeled("u1", labelA), labelA)
	without := newVolumes(t, root, d, unattached())
	publish(t, without, labeled("u2", ""), "")
	for _, call := range d.Calls() {
		if call == "NodeUnstageVolume h" {
			t.Error("the volume was unstaged")
		}
	}
	release(t, without, "u1", "u2")
}

func TestPodsWithOneLabelShareAVolume(t *testing.T) {
	d := csitest.Start(t, stages)
	vs := selinuxVolumes(t, t.TempDir(), d)
	publish(t, vs, labeled("u1", labelA), labelA)
	publish(t, vs, labeled("u2", labelA), labelA)
	endOfTwoPods(t, vs, d)
}

func TestAPodWithAnotherLabelWaits(t *testing.T) {
	for _, second := range []string{labelB, ""} {
		d := csitest.Start(t, stages)
		root := t.TempDir()
		vs := selinuxVolumes(t, root, d)
		publish(t, vs, labeled("u1", labelA), labelA)
		// What another process has mounted counts as well.
		for _, vs := range []*Volumes{vs, selinuxVolumes(t, root, d)} {
			_, err := vs.Publish(t.Context(), labeled("u2", second))
			var other *OtherLabel
			if !errors.As(err, &other) || err.Error() != waitsForOther {
				t.Errorf("a pod that wants %q: %v", second, err)
			}
		}
		// The driver takes it from the first pod, and still has it staged with that pod's label.
		if err := vs.Unpublish(t.Context(), "u1"); err != nil {
			t.Fatal(err)
		}
		publish(t, vs, labeled("u2", second), second)
		want := []string{
			"NodeStageVolume h", "NodePublishVolume h", "NodeUnpublishVolume h", "NodeUnstageVolume h", "NodeStageVolume h",
			"NodePublishVolume h",
		}
		if got := d.Calls(); !slices.Equal(got, want) {
			t.Errorf("calls: %q, want %q", got, want)
		}
		if got := noted(t, vs.layout.device(device{driverName, "h"})); got != second {
			t.Errorf("staged with %q, want %q", got, second)
		}
		release(t, vs, "u2")
	}
}

// A driver that stages nothing has nothing to stage again.
func TestALabelWithoutStaging(t *testing.T) {
	d := csitest.Start(t)
	vs := selinuxVolumes(t, t.TempDir(), d)
	publish(t, vs, labeled("u1", labelA), labelA)
	if _, err := vs.Publish(t.Context(), labeled("u2", labelB)); err == nil || err.Error() != waitsForOther {
		t.Errorf("a pod with another label: %v", err)
	}
	if err := vs.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	publish(t, vs, labeled("u2", labelB), labelB)
	release(t, vs, "u2")
}

// A version before this one has mounted volumes without a label. Pods that share one with such a pod get it as it is.
func TestAVolumeThatIsMountedWithoutALabel(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	publish(t, newVolumes(t, root, d, unattached()), labeled("u1", ""), "")
	vs := selinuxVolumes(t, root, d)
	publish(t, vs, labeled("u1", labelA), "") // to publish it again changes nothing
	publish(t, vs, labeled("u2", labelA), "")
	if got := flags(csitest.Last[*csi.NodePublishVolumeRequest](t, d).VolumeCapability); len(got) > 0 {
		t.Errorf("published with %q", got)
	}
	for _, uid := range []types.UID{"u1", "u2"} {
		if err := vs.Unpublish(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, vs, labeled("u3", labelA), labelA)
	release(t, vs, "u3")
}

// A file that a crash has left empty does not show with which label the volume is staged.
func TestAnUnknownLabelIsStagedAnew(t *testing.T) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	publish(t, selinuxVolumes(t, root, d), labeled("u1", labelA), labelA)
	vs := selinuxVolumes(t, root, d)
	if err := vs.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(vs.layout.device(device{driverName, "h"}), dataFile), 0); err != nil {
		t.Fatal(err)
	}
	publish(t, vs, labeled("u2", labelA), labelA)
	if got := d.Calls(); !slices.Contains(got, "NodeUnstageVolume h") {
		t.Errorf("calls: %q", got)
	}
	release(t, vs, "u2")
}

func TestAVolumeThatIsNotUnstagedForAnotherLabel(t *testing.T) {
	d := csitest.Start(t, stages)
	vs := selinuxVolumes(t, t.TempDir(), d)
	publish(t, vs, labeled("u1", labelA), labelA)
	if err := vs.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	d.Before(func(_ context.Context, method string) error {
		if method == "NodeUnstageVolume" {
			return status.Error(codes.Internal, "busy")
		}
		return nil
	})
	_, err := vs.Publish(t.Context(), labeled("u2", labelB))
	var step *Error
	if !errors.As(err, &step) || step.Step != "MountVolume.MountDevice failed" {
		t.Errorf("%v", err)
	}
	if got := noted(t, vs.layout.device(device{driverName, "h"})); got != labelA {
		t.Errorf("said to be staged with %q", got)
	}
	d.Before(nil)
	publish(t, vs, labeled("u2", labelB), labelB)
	release(t, vs, "u2")
}

// Neither a device nor a volume of the pod itself has a label.
func TestOtherVolumesHaveNoLabel(t *testing.T) {
	d := csitest.Start(t, stages)
	a := unattached()
	a.driver.Spec.PodInfoOnMount = new(true) // without it the driver takes an inline volume for another one
	vs := newVolumes(t, t.TempDir(), d, a)
	vs.o.SELinux = true
	for _, v := range []*Volume{
		block(pod("u1"), "b"), {Pod: pod("u1"), Name: "v", Inline: &v1.CSIVolumeSource{Driver: driverName}},
	} {
		v.Label = labelA
		publish(t, vs, v, "")
		if got := flags(csitest.Last[*csi.NodePublishVolumeRequest](t, d).VolumeCapability); len(got) > 0 {
			t.Errorf("published with %q", got)
		}
	}
	release(t, vs, "u1")
}

func TestMountsWithLabel(t *testing.T) {
	a := unattached()
	vs := newVolumes(t, t.TempDir(), csitest.Start(t), a)
	for _, c := range []struct {
		says *bool
		want bool
	}{{nil, false}, {new(false), false}, {new(true), true}} {
		a.driver.Spec.SELinuxMount = c.says
		if got, err := vs.MountsWithLabel(t.Context(), driverName); got != c.want || err != nil {
			t.Errorf("seLinuxMount %v: %t, %v", c.says, got, err)
		}
	}
	a.driver = nil
	if got, err := vs.MountsWithLabel(t.Context(), driverName); got || err != nil {
		t.Errorf("a driver without an object: %t, %v", got, err)
	}
	a.err = errors.New("no answer")
	if _, err := vs.MountsWithLabel(t.Context(), driverName); !errors.Is(err, a.err) {
		t.Errorf("%v", err)
	}
}
