// Package measurement measures what one pod takes of the node's disk.
//
// Its input is a pod, the folders of pods and the runtime's figures of writable layers. Its output is what the Summary
// API says of the same pod. It has no other service's figures: an eviction must not rest on what stats or the bus says
// alone. The bus says which volumes and containers the pod has, and makes no figure larger by that. Child processes
// walk through the folders, and are left behind if they hang. A large pod takes longer than its caller waits; the
// figures are there when it is asked for again.
package measurement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/microlet/microlet/services/internal/diskusage"
	"github.com/microlet/microlet/services/internal/podfolders"
	"github.com/microlet/microlet/services/internal/podutil"
)

const (
	// patience is how long a caller waits, who has other work.
	patience = 2 * time.Second
	// deadline is how long the measurement of one pod may take.
	deadline = 10 * time.Minute
	// maxUnder is how many pods are measured at one time: a large one must not shield the others. See turns.
	maxUnder = 3
	// kept is how long its outcome is good.
	kept = time.Minute
	// keptError is how long a pod is left alone that could not be measured as a whole.
	keptError = 5 * time.Minute

	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
)

// ErrNotYet says that the pod is still being measured, or waits for its turn.
var ErrNotYet = errors.New("what the pod takes is not measured yet")

// Runtime is the part of CRI that has the figures of writable layers.
type Runtime interface {
	ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest,
		...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error)
}

// errPartly is for figures of a pod if the walk has not covered all of its folders. It takes no less than they say.
var errPartly = errors.New("the pod is measured only in part")

// Walk measures folders; see diskusage.Walker. What it returns with an error is what it has seen until then.
type Walk func(ctx context.Context, dirs []diskusage.Dir) (map[diskusage.Dir]diskusage.Usage, error)

// Measurer measures pods. It is safe for concurrent use.
type Measurer struct {
	layout  podfolders.Layout
	runtime Runtime
	walk    Walk

	// next has the measurements that Run is to make.
	next chan *call

	mu       sync.Mutex
	under    map[types.UID]*call
	outcomes map[types.UID]outcome
	turns    turns
}

// call is a measurement that is under way.
type call struct {
	pod   *v1.Pod
	began time.Time
	done  chan struct{}
	// long and gaveWay are under the lock: it takes longer than turn, and it ended for others.
	long, gaveWay bool
}

type outcome struct {
	figures *statsapi.PodStats
	err     error
	until   time.Time
}

// New returns a Measurer of the pods that have folders there. It measures nothing before Run.
func New(layout podfolders.Layout, runtime Runtime, walk Walk) *Measurer {
	return &Measurer{
		layout: layout, runtime: runtime, walk: walk,
		next: make(chan *call, maxUnder), under: map[types.UID]*call{}, outcomes: map[types.UID]outcome{},
		turns: turns{long: map[types.UID]time.Time{}},
	}
}

// Run measures the pods that are asked for until ctx ends; that is no error.
func (m *Measurer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-m.next:
			all.Go(func() {
				ctx, end := context.WithCancel(ctx)
				defer end()
				defer time.AfterFunc(turn, func() { m.late(c, end) }).Stop()
				m.finish(c, m.outcome(ctx, c.pod))
			})
		}
	}
}

func (m *Measurer) outcome(ctx context.Context, p *v1.Pod) outcome {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	figures, err := m.measure(ctx, p)
	if figures == nil || errors.Is(err, errPartly) {
		return outcome{figures, err, time.Now().Add(keptError)}
	}
	return outcome{figures, err, time.Now().Add(kept)}
}

func (m *Measurer) finish(c *call, o outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.under, c.pod.UID)
	if !c.gaveWay {
		m.outcomes[c.pod.UID] = o
	}
	if time.Since(c.began) < turn {
		delete(m.turns.long, c.pod.UID)
	}
	close(c.done)
}

// Of returns what the pod takes, which is not older than a minute. It waits some seconds for it, and returns ErrNotYet
// if that is too short. The measurement then goes on. Figures that come with an error lack a part.
func (m *Measurer) Of(ctx context.Context, p *v1.Pod) (*statsapi.PodStats, error) {
	if under := m.begin(p); under != nil {
		select {
		case <-under.done:
		case <-time.After(patience):
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, measured := m.outcomes[p.UID]; measured {
		return o.figures, o.err
	}
	return nil, ErrNotYet
}

// begin has the pod measured unless that has been done, or it is the turn of others. It returns what is to be waited
// for.
func (m *Measurer) begin(p *v1.Pod) *call {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for uid, o := range m.outcomes {
		if now.After(o.until) {
			delete(m.outcomes, uid)
		}
	}
	if _, measured := m.outcomes[p.UID]; measured {
		return nil
	}
	if c := m.under[p.UID]; c != nil {
		return c
	}
	if quick, long := m.counts(); !m.turns.mayBegin(p.UID, quick, long) {
		return nil
	}
	c := &call{pod: p, began: now, done: make(chan struct{}), long: m.turns.isLong(p.UID)}
	m.under[p.UID] = c
	m.next <- c // it has room for all that are under way
	return c
}

// measure asks the runtime and walks through the folders of the pod.
func (m *Measurer) measure(ctx context.Context, p *v1.Pod) (*statsapi.PodStats, error) {
	of := podfolders.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name, Volumes: p.Spec.Volumes}
	layers, unknown := m.layers(ctx, p.UID)
	for c := range podutil.Containers(&p.Spec) {
		of.Containers = append(of.Containers, c.Name)
	}
	of.Running = of.Containers
	if unknown == nil {
		of.Running = slices.Sorted(maps.Keys(layers))
	}
	folders, err := m.layout.Resolved().Of(&of)
	if err != nil {
		return nil, err
	}
	used, err := m.walk(ctx, slices.Collect(folders.Dirs))
	if err != nil {
		unknown = errors.Join(unknown, fmt.Errorf("%w: %w", errPartly, err))
	}
	figures, now := &statsapi.PodStats{}, metav1.Now()
	total := uint64(0)
	fs := func(bytes uint64, counts bool) statsapi.FsStats {
		if counts {
			total += bytes
		}
		return statsapi.FsStats{Time: now, UsedBytes: &bytes}
	}
	for _, v := range folders.Volumes {
		// A volume on the disk is no mount. One in memory that the bus shows as one on the disk does not count.
		counts := v.Ephemeral && !used[v.Dir].MountRoot
		figures.VolumeStats = append(figures.VolumeStats, statsapi.VolumeStats{
			Name: v.Name, FsStats: fs(used[v.Dir].UsedBytes, counts),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(folders.Logs)) {
		logs, layer := fs(used[folders.Logs[name]].UsedBytes, true), fs(layers[name], true)
		figures.Containers = append(figures.Containers, statsapi.ContainerStats{Name: name, Logs: &logs, Rootfs: &layer})
	}
	for _, d := range folders.Own {
		fs(used[d].UsedBytes, true)
	}
	all := fs(total, false)
	figures.EphemeralStorage = &all
	return figures, unknown
}

// layers are the bytes of the writable layers of the pod's containers, by name: of each the newest, also if it has
// ended.
func (m *Measurer) layers(ctx context.Context, uid types.UID) (map[string]uint64, error) {
	answer, err := m.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{labelPodUID: string(uid)}},
	})
	if err != nil {
		return nil, fmt.Errorf("ask the runtime what containers take: %w", err)
	}
	layers, newest := map[string]uint64{}, map[string]uint32{}
	for _, c := range answer.GetStats() {
		labels, attempt := c.GetAttributes().GetLabels(), c.GetAttributes().GetMetadata().GetAttempt()
		name := labels[labelContainerName]
		if labels[labelPodUID] != string(uid) || attempt < newest[name] { // whatever the filter does
			continue
		}
		layers[name], newest[name] = c.GetWritableLayer().GetUsedBytes().GetValue(), attempt
	}
	return layers, nil
}
