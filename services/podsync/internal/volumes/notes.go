package volumes

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel"
)

// notes describe the volumes that are set up, in memory and in a file for each. With them a container that starts again
// after a restart of podsync needs no API server, and no volume is set up twice.
type notes struct {
	// plugin is the folder's name.
	plugin string
	// boot is the kernel's name of this boot: a volume that was noted in another one is no longer mounted.
	boot string

	mu   sync.Mutex
	held map[types.UID]map[string]note
	// alone are the pods that have, or are about to get, a PersistentVolume which one pod may have at a time.
	alone map[string]types.UID
}

// note is a volume that is set up.
type note struct {
	// PV is the name of the PersistentVolume, if it is one.
	PV string `json:"persistentVolume,omitempty"`
	// Alone is ReadWriteOncePod.
	Alone bool `json:"readWriteOncePod,omitempty"`
	// Republish is the CSIDriver's requiresRepublish.
	Republish bool `json:"republish,omitempty"`
	// Expands says that what is in the volume grows with its claim.
	Expands bool `json:"expands,omitempty"`
	// Label is the SELinux label that the pod wants it with; nil on a node without SELinux.
	Label *selinuxlabel.Label `json:"seLinux,omitempty"`
	// Plugin is the name in metrics; empty if an earlier version has noted it.
	Plugin string `json:"plugin,omitempty"`
	// Boot is the kernel's name of the boot in which it was set up.
	Boot    string  `json:"bootID"`
	Mounted Mounted `json:"mounted"`
	// Bound is where the file of a block device is bound for the pod; empty if an earlier version has noted it.
	Bound string `json:"bound,omitempty"`
}

// isMounted reports whether what was noted of a pod is mounted still. The mounts of a node may go while its kernel
// stays: with systemctl soft-reboot, with a node that is a container, or by hand. A container would then write to the
// node's disk.
func (is *note) isMounted(s *Spec) bool {
	point := is.Bound
	if point == "" && strings.HasPrefix(is.Mounted.HostPath, filepath.Dir(s.PluginsDir)+"/") {
		point = is.Mounted.HostPath
	}
	if point == "" {
		return true // a hostPath, of which nothing is mounted
	}
	listed, err := mountlist.Has(point)
	return err == nil && listed // if the list cannot be read, the next set-up reports why
}

func newNotes(plugin, boot string) *notes {
	return &notes{plugin: plugin, boot: boot, held: map[types.UID]map[string]note{}, alone: map[string]types.UID{}}
}

// existing returns the volume if it was set up in this boot.
func (n *notes) existing(s *Spec) (Mounted, bool) {
	found, ok := n.find(s)
	return found.Mounted, ok
}

func (n *notes) republishes(s *Spec) bool {
	found, ok := n.find(s)
	return ok && found.Republish
}

// refreshes reports whether the volume is set up again now and then.
func (n *notes) refreshes(s *Spec) bool {
	found, ok := n.find(s)
	return ok && (found.Republish || found.Expands)
}

// find returns what was noted, and holds it until the pod is forgotten. Only the pod's worker calls it: what
// another caller holds while the pod is unmounted would be held for ever.
func (n *notes) find(s *Spec) (note, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	found, ok := n.lookLocked(s)
	if ok {
		n.hold(s, found)
	}
	return found, ok
}

// look returns what was noted, and holds nothing.
func (n *notes) look(s *Spec) (note, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lookLocked(s)
}

func (n *notes) lookLocked(s *Spec) (note, bool) {
	if found, ok := n.held[s.Pod.UID][s.Volume.Name]; ok {
		return found, true
	}
	found, err := readNote(n.path(s))
	if err != nil || found.Boot != n.boot || !found.isMounted(s) {
		return note{}, false
	}
	return found, true
}

func readNote(path string) (found note, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(text, &found)
}

// write notes a volume that is set up now.
func (n *notes) write(s *Spec, is note) error {
	is.Boot = n.boot
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hold(s, is)
	text, err := json.Marshal(is)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(n.path(s)), 0o750); err != nil {
		return err
	}
	return atomicfile.Write(n.path(s), text, atomicfile.Attributes{Mode: 0o600, UID: -1, GID: -1})
}

func (n *notes) path(s *Spec) string {
	return filepath.Join(s.PluginsDir, n.plugin, s.Volume.Name+".json")
}

func (n *notes) hold(s *Spec, is note) {
	if n.held[s.Pod.UID] == nil {
		n.held[s.Pod.UID] = map[string]note{}
	}
	n.held[s.Pod.UID][s.Volume.Name] = is
}

// isHeld reports whether another pod has the PersistentVolume.
func (n *notes) isHeld(pv string, own types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, volumes := range n.held {
		for _, held := range volumes {
			if uid != own && held.PV == pv {
				return true
			}
		}
	}
	return false
}

// takeAlone gives a PersistentVolume to a pod, unless another one has it, is about to get it, or still has a note of it
// in its folder: one that ran before this process did, or that gives it back.
func (n *notes) takeAlone(s *Spec, pv string) (bool, error) {
	own := s.Pod.UID
	if n.isHeld(pv, own) {
		return false, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if uid, taken := n.alone[pv]; taken && uid != own {
		return false, nil
	}
	noted, err := n.isNoted(s, pv)
	if err != nil || noted {
		return false, err
	}
	n.alone[pv] = own
	return true, nil
}

// isNoted reports whether another pod's folder has a note of the PersistentVolume.
func (n *notes) isNoted(s *Spec, pv string) (bool, error) {
	pods := filepath.Dir(filepath.Dir(s.PluginsDir))
	list, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, pod := range list {
		if !pod.IsDir() || pod.Name() == string(s.Pod.UID) {
			continue
		}
		dir := filepath.Join(pods, pod.Name(), filepath.Base(s.PluginsDir), n.plugin)
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		for _, file := range files {
			is, err := readNote(filepath.Join(dir, file.Name()))
			if err == nil && is.PV == pv && is.Boot == n.boot {
				return true, nil
			}
		}
	}
	return false, nil
}

// forget drops what was noted of a pod, and returns the PersistentVolumes that it had. The files go with the pod's
// folder.
func (n *notes) forget(pod types.UID) (pvs []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, held := range n.held[pod] {
		if held.PV != "" {
			pvs = append(pvs, held.PV)
		}
	}
	delete(n.held, pod)
	maps.DeleteFunc(n.alone, func(_ string, uid types.UID) bool { return uid == pod })
	return pvs
}
