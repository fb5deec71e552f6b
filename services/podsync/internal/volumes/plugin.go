package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// Plugin sets up the volumes of one kind. Its methods may be called by several goroutines,
// for one volume by one at a time.
type Plugin interface {
	// Name is the plugin's name as it stands in paths, such as kubernetes.io~empty-dir.
	Name() string
	// Handles reports whether the volume is of this kind.
	Handles(v *v1.Volume) bool
	// Check reports whether what the volume needs is there, so that the pod may get its sandbox.
	Check(ctx context.Context, s *Spec) error
	// Existing returns the volume if it is set up and filled, by this process, another one or a kubelet. It answers at
	// once: it asks neither the API nor a foreign file system.
	Existing(s *Spec) (Mounted, bool)
	// SetUp sets the volume up, or brings it up to date. What may hang in the kernel it does
	// where it can be left behind when ctx ends.
	SetUp(ctx context.Context, s *Spec) (Mounted, error)
	// Refreshes reports whether SetUp is to be called now and then for a volume that is set up already.
	Refreshes(s *Spec) bool
}

// Spec is one volume of one pod.
type Spec struct {
	Pod    *v1.Pod
	Volume *v1.Volume
	// Dir is the volume's own folder, <root-dir>/pods/<uid>/volumes/<plugin>/<volume>.
	Dir string
	// PluginsDir is <root-dir>/pods/<uid>/plugins, where plugins note what they have done.
	PluginsDir string
}

// Mounted is a volume that is there.
type Mounted struct {
	// HostPath is the folder, or with a hostPath anything else, to mount into containers.
	HostPath string
	// Device is a link to the block device that containers are to have. With one there is no HostPath.
	Device string `json:",omitempty"`
	// ReadOnly volumes are mounted read-only whatever the container asks for.
	ReadOnly bool
	// SELinuxRelabel says that the runtime is to label the files for the container.
	SELinuxRelabel bool
	// Group is a further group of all processes that use the volume, as the annotation pv.beta.kubernetes.io/gid of a
	// PersistentVolume has it; empty for none.
	Group string `json:",omitempty"`
}

// ready is the kubelet's mark of an emptyDir, or of what wraps one, that is set up.
type ready string

func (s *Spec) ready(volume string) ready {
	return ready(filepath.Join(s.PluginsDir, emptyDirName, volume, "ready"))
}

func (r ready) is() bool {
	_, err := os.Stat(string(r))
	return err == nil
}

func (r ready) set() error {
	if err := os.MkdirAll(filepath.Dir(string(r)), 0o750); err != nil {
		return err
	}
	f, err := os.Create(string(r))
	if err != nil {
		return err
	}
	return f.Close()
}

// setBy is set with the name of the boot in which the volume was filled. The kubelet, which looks at nothing but the
// file's presence, leaves it empty.
func (r ready) setBy(boot string) error {
	if err := os.MkdirAll(filepath.Dir(string(r)), 0o750); err != nil {
		return err
	}
	if r.is() && r.by(boot) {
		return nil
	}
	return os.WriteFile(string(r), []byte(boot), 0o644)
}

// by reports whether the mark was set in this boot.
func (r ready) by(boot string) bool {
	was, err := os.ReadFile(string(r))
	return err == nil && string(was) == boot
}

// errNotBuilt is what a volume of a kind without a plugin gets; admission refuses it first.
var errNotBuilt = errors.New("this kind of volume is not built")
