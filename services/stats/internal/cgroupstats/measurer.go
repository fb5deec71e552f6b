package cgroupstats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/cadvisor/lib/model"
	libcgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/readerrors"
)

const (
	cgroupSource     = readerrors.Cgroup
	processSource    = readerrors.Process
	machineSource    = readerrors.Machine
	filesystemSource = readerrors.Filesystem
)

// Options of a Measurer. All fields but System, Except and PodCgroups are required.
type Options struct {
	// CgroupRoot is cgroupRoot of the kubelet's configuration: below it are the pods.
	CgroupRoot string
	// System are the cgroups of the system's parts, by the Summary API's names of them.
	System map[string]string
	// Except are folders with mounts that come and go with pods.
	Except []string
	// PodCgroups reports whether the cgroups of pods and containers are read, which they need not be if the runtime
	// measures them. nil is always.
	PodCgroups func() bool
	// Pods returns the node's pods by their UID.
	Pods func() map[string]*nodepods.Pod
	// Book takes what cannot be read.
	Book *readerrors.Recorder
}

// Measurer takes snapshots. Only one goroutine at a time may use it.
type Measurer struct {
	o       Options
	book    *readerrors.Recorder
	prober  *fsusage.Prober
	proc    *proc
	mounted map[string]string

	machine   *model.MachineInfo
	machineAt time.Time
	boot      time.Time
	tracked   map[string]*tracked
}

// New returns a measurer; the error says that this host has no cgroups that can be read.
func New(o Options) (*Measurer, error) {
	mounted, err := mounts()
	if err != nil {
		return nil, err
	}
	m := &Measurer{
		o: o, book: o.Book, prober: &fsusage.Prober{}, proc: newProc("/proc"), mounted: mounted,
		tracked: map[string]*tracked{},
	}
	m.boot = m.proc.bootTime()
	return m, nil
}

// listing is the hierarchy in which cgroups are looked for.
func (m *Measurer) listing() string {
	for _, controller := range []string{"", "cpu", "memory"} {
		if at, ok := m.mounted[controller]; ok {
			return at
		}
	}
	return ""
}

// Read measures. The error is that of the whole: the root cannot be read, or ctx ended. What else cannot be read is
// left out and complained of.
func (m *Measurer) Read(ctx context.Context) (*Snapshot, error) {
	s := &Snapshot{ReadAt: time.Now(), Boot: m.boot, System: map[string]*Cgroup{}}
	mounted := m.filesystems(ctx)
	if err := m.refreshMachine(mounted); err != nil {
		return nil, err
	}
	s.Machine = m.machine
	s.PSI = libcgroups.IsCgroup2UnifiedMode() && pressure(m.listing())
	if err := m.readAll(ctx, s); err != nil {
		return nil, err
	}
	root := s.Root()
	if root == nil {
		return nil, errors.New("the root of the cgroups cannot be read")
	}
	root.Stats.Filesystem = m.fsStats(mounted)
	var err error
	if s.Tasks, err = m.proc.tasks(); err != nil {
		m.book.Add(processSource, "tasks", err)
	}
	return s, nil
}

// refreshMachine reads the machine if what is known of it is old. An old description is better than none.
func (m *Measurer) refreshMachine(mounted []mounted) error {
	if m.machine != nil && time.Since(m.machineAt) < machinePeriod {
		return nil
	}
	info, err := readMachine(mounted)
	if err != nil {
		if m.machine == nil {
			return err
		}
		m.book.Add(machineSource, "machine", err)
		return nil
	}
	m.machine, m.machineAt = info, time.Now()
	return nil
}

// readAll reads every cgroup that there is, and forgets those that are gone.
func (m *Measurer) readAll(ctx context.Context, s *Snapshot) error {
	all, err := m.find()
	if err != nil {
		return err
	}
	known := m.o.Pods()
	containers, spelled := index(known), spellings(known)
	present := make(map[string]bool, len(all))
	for _, f := range all {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read the cgroups: %w", err)
		}
		present[f.name] = true
		if uid, ok := spelled[spelling(f.podUID)]; ok {
			f.podUID = uid
		}
		pod := known[f.podUID]
		network := f.kind == Root || pod != nil && f.kind == Container && f.id == pod.SandboxID
		c, err := m.read(f, network)
		if err != nil {
			if !gone(err) {
				m.book.Add(cgroupSource, f.name, err)
			}
			continue
		}
		c.PodUID, c.Pod, c.Container = f.podUID, pod, containers[f.id]
		s.Cgroups = append(s.Cgroups, c)
		if f.all {
			s.System[statsapi.SystemContainerPods] = c
		}
	}
	for name := range m.tracked {
		if !present[name] {
			delete(m.tracked, name)
		}
	}
	for part, name := range m.o.System {
		if i := slices.IndexFunc(s.Cgroups, func(c *Cgroup) bool { return c.Name == name }); i >= 0 {
			s.System[part] = s.Cgroups[i]
		}
	}
	return nil
}

// spellings finds the UIDs of pods by the one spelling that the names of all cgroups have. A name with the systemd
// driver has "_" for "-", so that the UID of a static pod that has "_" itself cannot be read from it.
func spellings(known map[string]*nodepods.Pod) map[string]string {
	all := make(map[string]string, len(known))
	for uid := range known {
		all[spelling(uid)] = uid
	}
	return all
}

func spelling(uid string) string { return strings.ReplaceAll(uid, "_", "-") }

// index finds containers by their ID.
func index(known map[string]*nodepods.Pod) map[string]*nodepods.Container {
	all := map[string]*nodepods.Container{}
	for _, p := range known {
		for i := range p.Containers {
			if c := &p.Containers[i]; c.ID != "" {
				all[c.ID] = c
			}
		}
	}
	return all
}

// find lists the cgroups to read, by name, each once.
func (m *Measurer) find() ([]found, error) {
	all := []found{{name: "/", kind: Root}}
	below, err := find(m.listing(), m.o.CgroupRoot, maxCgroups)
	if err != nil {
		return nil, fmt.Errorf("find the cgroups of pods: %w", err)
	}
	if m.o.PodCgroups != nil && !m.o.PodCgroups() {
		below = slices.DeleteFunc(below, func(f found) bool { return f.kind == PodKind || f.kind == Container })
	}
	all = append(all, below...)
	for _, name := range m.o.System {
		all = append(all, found{name: name, kind: Slice})
	}
	slices.SortStableFunc(all, func(a, b found) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(all, func(a, b found) bool { return a.name == b.name }), nil
}

// read reads one cgroup. What was read of one that vanished meanwhile is no sample: files that are gone read as zeros.
func (m *Measurer) read(f found, network bool) (*Cgroup, error) {
	t := m.tracked[f.name]
	if t == nil {
		var err error
		if t, err = track(f, m.mounted); err != nil {
			return nil, err
		}
		m.tracked[f.name] = t
	}
	c, err := t.read(m, network)
	if t.kind != Root {
		if _, there := os.Stat(t.dir("cpu")); errors.Is(there, fs.ErrNotExist) {
			return nil, there
		}
	}
	return c, err
}

// gone reports whether an error is that of a cgroup that vanished while it was read.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
