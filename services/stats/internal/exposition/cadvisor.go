package exposition

import (
	"bytes"
	"fmt"
	"time"

	"github.com/google/cadvisor/lib/container"
	"github.com/google/cadvisor/lib/machine"
	"github.com/google/cadvisor/lib/metrics"
	"github.com/google/cadvisor/lib/model"
	"github.com/google/cadvisor/lib/version"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
)

// Cadvisor writes /metrics/cadvisor: the families, labels and values of the kubelet's cAdvisor. It returns the sink's
// error. The sink may not keep what it gets. created may lack what the runtime has not reported.
func Cadvisor(s *cgroupstats.Snapshot, created cri.Created, now time.Time, sink func([]byte) error) error {
	w := &writer{buf: make([]byte, 0, partSize+4096), sink: sink}
	w.family("cadvisor_version_info", gauge, "A metric with a constant '1' value labeled by kernel version, "+
		"OS version, docker version, cadvisor version & cadvisor revision.")
	w.metric(versionLabels(), 1, time.Time{})
	all := subjects(s, created)
	for i := range families {
		writeFamily(w, &families[i], all, s.PSI, now)
	}
	w.family("container_scrape_error", gauge, "1 if there was an error while getting container metrics, 0 otherwise")
	w.metric("", 0, time.Time{})
	w.flush()
	if w.err != nil {
		return w.err
	}
	text, err := machineText(s.Machine)
	if err != nil {
		return err
	}
	return sink(text)
}

func versionLabels() string {
	return label("cadvisorRevision", version.Info["revision"]) +
		"," + label("cadvisorVersion", version.Info["version"]) + "," + label("dockerVersion", "") + "," +
		label("kernelVersion", machine.KernelVersion()) +
		"," + label("osVersion", machine.ContainerOsVersion())
}

// subject is a cgroup of which the page reports.
type subject struct {
	*cgroupstats.Cgroup

	labels  string
	created time.Time
}

// subjects are the cgroups of the page. A pod or container that podsync has not published has no names yet, or is gone
// and has left its cgroup: it has no figures.
func subjects(s *cgroupstats.Snapshot, created cri.Created) []subject {
	all := make([]subject, 0, len(s.Cgroups))
	for _, c := range s.Cgroups {
		one := subject{Cgroup: c, created: c.Spec.CreationTime}
		switch {
		case c.Kind == cgroupstats.Root || c.Kind == cgroupstats.Slice:
			one.labels = names(c.Name, "", "", "", "", "")
		case c.Pod == nil:
			continue
		case c.Kind == cgroupstats.PodKind:
			one.labels = names(c.Name, "", "", "", c.Pod.Namespace, c.Pod.Name)
		default:
			name, image := "", ""
			if c.Container != nil {
				name, image = c.Container.Name, c.Container.Image
			} else if !c.IsSandbox() {
				continue
			}
			one.labels = names(c.Name, name, c.ID, image, c.Pod.Namespace, c.Pod.Name)
			if at, ok := created[c.ID]; ok {
				one.created = at
			}
		}
		all = append(all, one)
	}
	return all
}

// names are the labels that each metric has. There are no others: what else a pod's author can choose, such as labels
// and environment of the container, makes no series.
func names(id, name, containerID, image, namespace, pod string) string {
	return label("container", name) + "," + label("id", id) + "," + label("image", image) + "," +
		label("name", containerID) + "," + label("namespace", namespace) + "," + label("pod", pod)
}

// series writes the metrics of one family and one cgroup.
type series struct {
	w       *writer
	subject *subject
	at      time.Time
	now     time.Time
	// written are the further labels of this cgroup's metrics so far: of two alike the first counts.
	written []string
}

// put writes a metric without further labels.
func (s *series) put(value float64) { s.w.metric(s.subject.labels, value, s.at) }

// with writes a metric with further labels.
func (s *series) with(more string, value float64) {
	for _, other := range s.written {
		if other == more {
			return
		}
	}
	s.written = append(s.written, more)
	s.w.labelled(s.subject.labels, more, value, s.at)
}

func writeFamily(w *writer, f *family, all []subject, psi bool, now time.Time) {
	if f.pressure && !psi {
		return
	}
	w.family(f.name, f.kind, f.help)
	s := series{w: w, now: now}
	for i := range all {
		c := &all[i]
		if f.when != nil && !f.when(&c.Spec) {
			continue
		}
		s.subject, s.at, s.written = c, c.Stats.Timestamp, s.written[:0]
		if f.untimed {
			s.at = time.Time{}
		}
		f.write(&s, c.Stats)
		if w.err != nil {
			return
		}
	}
}

// machineSource is what cAdvisor's collector of the machine asks.
type machineSource struct{ info *model.MachineInfo }

// GetRequestedContainersInfo is not asked for.
func (machineSource) GetRequestedContainersInfo(
	string, model.RequestOptions,
) (map[string]*model.ContainerInfo, error) {
	return map[string]*model.ContainerInfo{}, nil
}

// GetVersionInfo is not asked for.
func (machineSource) GetVersionInfo() (*model.VersionInfo, error) { return &model.VersionInfo{}, nil }

// GetMachineInfo returns the machine, without the time at which it was looked at: its metrics would have that time,
// and so be stale for Prometheus some minutes later.
func (m machineSource) GetMachineInfo() (*model.MachineInfo, error) {
	timeless := *m.info
	timeless.Timestamp = time.Time{}
	return &timeless, nil
}

// machineText are the metrics of the machine, which cAdvisor's own collector makes: they are few.
func machineText(info *model.MachineInfo) ([]byte, error) {
	registry := prometheus.NewRegistry()
	collector := metrics.NewPrometheusMachineCollector(machineSource{info}, container.MetricSet{})
	if err := registry.Register(collector); err != nil {
		return nil, fmt.Errorf("metrics of the machine: %w", err)
	}
	found, err := registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("metrics of the machine: %w", err)
	}
	var text bytes.Buffer
	for _, f := range found {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return nil, fmt.Errorf("metrics of the machine: %w", err)
		}
	}
	return text.Bytes(), nil
}
