package scene

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/compose/rig"
)

// ManifestFolder is a folder of static pods' manifests.
type ManifestFolder struct {
	T   *testing.T
	Dir string // on the node
}

// NewManifestFolder has the agent, with these arguments, read a folder until the test ends.
func NewManifestFolder(t *testing.T, agent rig.Agent, args ...string) *ManifestFolder {
	t.Helper()
	m := NewUnreadManifestFolder(t)
	Shared.SwitchTo(t, agent, append([]string{m.Flag()}, args...)...)
	t.Cleanup(func() { Shared.SwitchTo(t, FirstAgent) })
	return m
}

// NewUnreadManifestFolder makes a folder of manifests on the node, which no agent reads yet.
func NewUnreadManifestFolder(t *testing.T) *ManifestFolder {
	t.Helper()
	Shared.EnsureUp(t)
	if !Shared.OnMachine() {
		return &ManifestFolder{T: t, Dir: t.TempDir()}
	}
	// A reboot empties /tmp.
	m := &ManifestFolder{T: t, Dir: fmt.Sprintf("/etc/kubernetes/manifests-%d", folders.Add(1))}
	if err := Shared.MkdirAll(m.Dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := Shared.RunOnMachine(context.Background(), "rm", "-r", m.Dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

var folders atomic.Int64

// Flag is the argument with which an agent reads the folder.
func (m *ManifestFolder) Flag() string { return "--pod-manifest-path=" + m.Dir }

// Put writes a manifest as one should: whole, by a rename.
func (m *ManifestFolder) Put(file string, content []byte) {
	m.T.Helper()
	hidden := filepath.Join(m.Dir, "."+file)
	if err := Shared.WriteFile(hidden, content); err != nil {
		m.T.Fatal(err)
	}
	m.Rename("."+file, file)
}

// Rename renames a manifest in the folder.
func (m *ManifestFolder) Rename(from, to string) {
	m.T.Helper()
	from, to = filepath.Join(m.Dir, from), filepath.Join(m.Dir, to)
	var err error
	if Shared.OnMachine() {
		_, err = Shared.RunOnMachine(m.T.Context(), "mv", "-T", from, to)
	} else {
		err = os.Rename(from, to)
	}
	if err != nil {
		m.T.Fatal(err)
	}
}

// Remove removes a manifest.
func (m *ManifestFolder) Remove(file string) {
	m.T.Helper()
	path := filepath.Join(m.Dir, file)
	var err error
	if Shared.OnMachine() {
		_, err = Shared.RunOnMachine(m.T.Context(), "rm", path)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		m.T.Fatal(err)
	}
}

// Manifest is a pod of the scenario's namespace as a file has it.
func (s *Scene) Manifest(p *corev1.Pod) []byte {
	s.T.Helper()
	p.APIVersion, p.Kind, p.Namespace = "v1", "Pod", s.Namespace
	data, err := yaml.Marshal(p)
	if err != nil {
		s.T.Fatal(err)
	}
	return data
}

// MirrorName is the name of a static pod in the API.
func (s *Scene) MirrorName(name string) string { return name + "-" + s.NodeName() }
