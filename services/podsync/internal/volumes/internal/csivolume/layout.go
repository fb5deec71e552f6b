package csivolume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/removal"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
)

const (
	// Plugin is the folder of CSI volumes among a pod's.
	Plugin = "kubernetes.io~csi"
	// dataFile is beside each mount.
	dataFile = "vol_data.json"
	// target is what a driver mounts for a pod, staging what it mounts for the node.
	target  = "mount"
	staging = "globalmount"
	// blockDir is beside the drivers' folders, and has the block volumes of all of them.
	blockDir = "volumeDevices"
)

// layout is where the kubelet has its volumes.
type layout struct{ root string }

// volumeData is what vol_data.json says. The kubelet reads a map of strings.
type volumeData struct {
	Driver string `json:"driverName"`
	Handle string `json:"volumeHandle"`
	// The rest is that of a pod's volume.
	Name       string `json:"specVolID,omitempty"`
	Node       string `json:"nodeName,omitempty"`
	Attachment string `json:"attachmentID,omitempty"`
	Mode       string `json:"volumeLifecycleMode,omitempty"`
	// Label is the SELinux label with which the volume is mounted, if there is one: for the pod or on the node.
	Label string `json:"seLinuxMountContext,omitempty"`
}

// device is a volume of a driver.
type device struct{ driver, handle string }

func (d volumeData) device() device { return device{d.Driver, d.Handle} }

func (l layout) pods() string { return filepath.Join(l.root, "pods") }

// volumes is the folder of a pod's volumes.
func (l layout) volumes(pod types.UID) string {
	return filepath.Join(l.pods(), string(pod), "volumes", Plugin)
}

// volume is the folder of one of them.
func (l layout) volume(pod types.UID, name string) string { return filepath.Join(l.volumes(pod), name) }

// target is where the driver mounts it.
func (l layout) target(pod types.UID, name string) string {
	return filepath.Join(l.volume(pod, name), target)
}

func (l layout) devices() string { return filepath.Join(l.root, "plugins", "kubernetes.io", "csi") }

// device is the folder in which the volume is staged.
func (l layout) device(d device) string {
	return filepath.Join(l.devices(), d.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(d.handle))))
}

// isHash reports whether the name of a folder is one that device makes.
func isHash(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(name) == name
}

// inlineHandle is the name by which a driver knows an inline volume.
func inlineHandle(pod types.UID, name string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod)+name)))
}

// attachmentName is the name of the VolumeAttachment of a volume and a node.
func attachmentName(d device, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(d.handle+d.driver+node)))
}

// save writes vol_data.json in a folder, which it makes.
func (d volumeData) save(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, dataFile), append(text, '\n'),
		atomicfile.Attributes{Mode: 0o644, UID: -1, GID: -1, Durable: true})
}

// load reads vol_data.json of a folder.
func load(dir string) (d volumeData, err error) {
	path := filepath.Join(dir, dataFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	if d.Driver == "" || d.Handle == "" {
		return d, fmt.Errorf("%s: driverName or volumeHandle is empty", path)
	}
	return d, nil
}

// inline reports whether it is a pod's own volume, which is never staged.
func (d volumeData) inline() bool { return d.Mode == string(storagev1.VolumeLifecycleEphemeral) }

// entries lists the folders in dir. One that is not there has none.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// mountedElsewhere lists where what is mounted at a path is mounted as well.
func mountedElsewhere(path string) ([]string, error) {
	path, err := mountlist.Resolve(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	mounts, err := mount.ParseMountInfo(mountlist.File)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	for i := range mounts {
		mounts[i].MountPoint = mountlist.Path(mounts[i].MountPoint)
	}
	var elsewhere []string
	for i := range mounts {
		if mounts[i].MountPoint != path {
			continue
		}
		for _, m := range mounts {
			if m.MountPoint != path && m.Major == mounts[i].Major && m.Minor == mounts[i].Minor && m.Root == mounts[i].Root {
				elsewhere = append(elsewhere, m.MountPoint)
			}
		}
	}
	return elsewhere, nil
}

// remove removes a folder with a mount point in it, once nothing is mounted there. A driver should have removed the
// mount point, and some don't. Beside it there is vol_data.json, and what a process that was killed has left of one.
// Whatever else is mounted in the folder stays as it is, and is an error.
func remove(ctx context.Context, dir, point string) error {
	if err := removeUnmounted(filepath.Join(dir, point)); err != nil {
		return err
	}
	return removal.Tree(ctx, dir)
}

// removeUnmounted removes a file or an empty folder, once nothing is mounted there.
func removeUnmounted(path string) error {
	mounted, err := mountlist.Has(path)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("%s is still mounted", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
