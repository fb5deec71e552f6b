package volumes

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Hold keeps the files of those volumes in which the container mounts a path as they are until release is called. The
// kernel does not mount a file that a renewal has removed, so no renewal may come between SubPath and the start of the
// container. It waits for a renewal that is writing, never for one that asks the API.
func (m *Manager) Hold(ctx context.Context, p *v1.Pod, c *v1.Container) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Deadline)
	defer cancel()
	var holds []func()
	release = func() {
		for _, one := range holds {
			one()
		}
	}
	for _, dir := range m.renewed(p, c) {
		one, err := m.calls.hold(ctx, dir)
		if err != nil {
			release()
			return nil, err
		}
		holds = append(holds, one)
	}
	return release, nil
}

// renewed returns the folders of those volumes in which the container mounts a path and whose files are renewed.
func (m *Manager) renewed(p *v1.Pod, c *v1.Container) []string {
	var dirs []string
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		plugin, s, err := m.volume(p, v)
		if _, isFiles := plugin.(*files); err != nil || !isFiles {
			continue
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
			return m.Name == v.Name && (m.SubPath != "" || m.SubPathExpr != "")
		}) {
			dirs = append(dirs, s.Dir)
		}
	}
	return dirs
}
