package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// mounts is a node with one volume, and the paths for it.
type mounts struct {
	*node
	id, staging, target string
	capability          *csi.VolumeCapability
	context             map[string]string
}

func newMounts(t *testing.T) *mounts {
	t.Helper()
	return newMountsOf(t, folder)
}

func newMountsOf(t *testing.T, is kind) *mounts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	dir := t.TempDir()
	m := &mounts{
		node: newNode(dir), staging: filepath.Join(dir, "staging"), target: filepath.Join(dir, "target"),
		capability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
	if err := os.Mkdir(m.store.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if is == device {
		m.capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	parameters := map[string]string{}
	if is == memory {
		parameters[paramKind] = string(memory)
	}
	made, err := controller{driver: m.driver}.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "v", VolumeCapabilities: []*csi.VolumeCapability{m.capability}, Parameters: parameters,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.id = made.GetVolume().GetVolumeId()
	attached, err := controller{driver: m.driver}.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: m.id, NodeId: m.driver.node, VolumeCapability: m.capability,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.context = attached.GetPublishContext()
	t.Cleanup(func() {
		_ = syscall.Unmount(m.target, syscall.MNT_DETACH)
		_ = syscall.Unmount(m.staging, syscall.MNT_DETACH)
		_ = m.store.disk(m.id).detach()
		_ = m.store.remove(m.id)
	})
	return m
}

func newNode(dir string) *node {
	d := driver{name: "d", node: "n", can: abilities{attach: true}, store: store{filepath.Join(dir, "volumes")}}
	return &node{driver: d, mounter: mount.New("")}
}

func (m *mounts) stage(t *testing.T) {
	t.Helper()
	if _, err := m.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: m.id, StagingTargetPath: m.staging, VolumeCapability: m.capability, PublishContext: m.context,
	}); err != nil {
		t.Fatal(err)
	}
}

func (m *mounts) publish(t *testing.T, readOnly bool) error {
	t.Helper()
	_, err := m.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: m.id, StagingTargetPath: m.staging, TargetPath: m.target, VolumeCapability: m.capability,
		Readonly: readOnly,
	})
	return err
}

func (m *mounts) release(t *testing.T) {
	t.Helper()
	if _, err := m.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
		VolumeId: m.id, TargetPath: m.target,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{
		VolumeId: m.id, StagingTargetPath: m.staging,
	}); err != nil {
		t.Fatal(err)
	}
}

// What a pod writes is there for the next one, also after the driver has started again, and nothing stays mounted.
func TestWhatIsWrittenStays(t *testing.T) {
	m := newMounts(t)
	m.stage(t)
	if err := m.publish(t, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.target, "file"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.node = newNode(filepath.Dir(m.store.dir)) // knows nothing but what is on disk
	m.release(t)
	for _, path := range []string{m.staging, m.target} {
		if there, err := m.mounted(path); err != nil || there {
			t.Errorf("%s is mounted: %v, %v", path, there, err)
		}
	}
	if _, err := os.Stat(m.target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is left: %v", err)
	}
	m.stage(t)
	if err := m.publish(t, true); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(m.target, "file"))
	if err != nil || string(text) != "data" {
		t.Errorf("the file has %q: %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(m.target, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write through a read-only publish gives %v", err)
	}
	m.release(t)
}

func TestNothingIsPublishedBeforeItIsStaged(t *testing.T) {
	m := newMounts(t)
	if err := os.Mkdir(m.staging, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.publish(t, false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the publish gives %v", err)
	}
	if _, err := os.Stat(m.target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is there: %v", err)
	}
}

func TestNothingIsStagedBeforeItIsAttached(t *testing.T) {
	m := newMounts(t)
	if err := m.store.detach(m.id); err != nil {
		t.Fatal(err)
	}
	_, err := m.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: m.id, StagingTargetPath: m.staging, VolumeCapability: m.capability, PublishContext: m.context,
	})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the stage gives %v", err)
	}
}

// An inline volume begins and ends with its one publish.
func TestAnInlineVolume(t *testing.T) {
	m := newMounts(t)
	m.id = "csi-" + m.id
	publish := &csi.NodePublishVolumeRequest{
		VolumeId: m.id, TargetPath: m.target, VolumeCapability: m.capability,
		VolumeContext: map[string]string{ephemeral: "true"},
	}
	for range 2 {
		if _, err := m.NodePublishVolume(t.Context(), publish); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.target, "file"), nil, 0o600); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := m.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
			VolumeId: m.id, TargetPath: m.target,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.store.get(m.id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the volume is left: %v", err)
	}
}

func TestAnIDIsNoPath(t *testing.T) {
	s := store{t.TempDir()}
	neighbour := filepath.Join(filepath.Dir(s.dir), "neighbour")
	if err := os.Mkdir(neighbour, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"../neighbour", ".", "..", "", neighbour} {
		if _, err := s.get(id); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("volume %q gives %v", id, err)
		}
		if err := s.remove(id); err != nil {
			t.Errorf("the removal of %q gives %v", id, err)
		}
	}
	for _, dir := range []string{neighbour, s.dir} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// One node may write, and any number may read.
func TestAccessModes(t *testing.T) {
	m := newMounts(t)
	for mode, want := range map[csi.VolumeCapability_AccessMode_Mode]codes.Code{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:      codes.OK,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY: codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:  codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER: codes.InvalidArgument,
		csi.VolumeCapability_AccessMode_UNKNOWN:                 codes.InvalidArgument,
	} {
		m.capability.AccessMode.Mode = mode
		_, err := m.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: m.id, StagingTargetPath: m.staging, VolumeCapability: m.capability, PublishContext: m.context,
		})
		if got := status.Code(err); got != want {
			t.Errorf("the stage with %s gives %v, want %s", mode, err, want)
		}
	}
}
