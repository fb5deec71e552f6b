package volumes

import (
	"context"
	"strings"
	"time"

	"github.com/microlet/microlet/services/internal/podutil"
)

// setUp sets a volume up, and measures that. Only a claim knows its plugin, so it measures itself.
func (m *Manager) setUp(ctx context.Context, plugin Plugin, s *Spec) (Mounted, error) {
	if _, claimed := plugin.(*claim); claimed {
		return plugin.SetUp(ctx, s)
	}
	began := time.Now()
	mounted, err := plugin.SetUp(ctx, s)
	m.opts.Metrics.SetUp(s.Pod.UID, s.Volume.Name, m.pluginOf(plugin, s), began, err)
	return mounted, err
}

// want notes that the pod wants a volume. As with the kubelet, one that no container uses does not count.
func (m *Manager) want(s *Spec) {
	if mounted, mapped := podutil.UsesVolume(&s.Pod.Spec, s.Volume.Name); mounted || mapped {
		m.opts.Metrics.Want(s.Pod.UID, s.Volume.Name, mapped)
	}
}

// has notes that the pod has it.
func (m *Manager) has(plugin Plugin, s *Spec) {
	if name := m.pluginOf(plugin, s); name != "" {
		m.opts.Metrics.Has(s.Pod.UID, s.Volume.Name, name)
	}
}

// pluginOf is the name of a plugin in metrics, and empty if it is unknown.
func (m *Manager) pluginOf(plugin Plugin, s *Spec) string {
	switch plugin.(type) {
	case *claim:
		found, _ := m.claims.find(s)
		return found.Plugin
	case *inlineCSI:
		return m.opts.Metrics.CSI(s.Volume.CSI.Driver)
	}
	return strings.Replace(plugin.Name(), "~", "/", 1)
}
