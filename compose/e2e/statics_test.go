//go:build !bench

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/rig"
)

// watchOnly has the agent list its folder of manifests so rarely that what it notices it has from its watch.
const watchOnly = "--file-check-frequency=1h"

// ManifestFolder is a folder of static pods' manifests.
type ManifestFolder struct {
	T   *testing.T
	Dir string
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

// static is a manifest of a pod in the scenario's namespace.
func static(s *Scene, name, script string) []byte {
	s.T.Helper()
	return s.Manifest(ScriptPod(name, script))
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

// runs waits for a Ready mirror pod, other than the one before, and returns it.
func runs(s *Scene, limit time.Duration, name string, before *corev1.Pod) *corev1.Pod {
	s.T.Helper()
	var found *corev1.Pod
	s.Wait(limit, "a Ready mirror of "+name, func(v record.View) error {
		if err := s.AreReady(s.MirrorName(name))(v); err != nil {
			return err
		}
		found = v.Pod(s.Namespace, s.MirrorName(name))
		if before != nil && found.UID == before.UID {
			return errors.New("it is the one from before")
		}
		return nil
	})
	for _, key := range []string{corev1.MirrorPodAnnotationKey, "kubernetes.io/config.hash",
		"kubernetes.io/config.source"} {
		if found.Annotations[key] == "" {
			s.T.Errorf("mirror %s has no annotation %s", found.Name, key)
		}
	}
	return found
}

func ContainerID(p *corev1.Pod) string { return p.Status.ContainerStatuses[0].ContainerID }

// TestStaticPod: a manifest is put, changed and removed, its mirror deleted; and a pod is run by hand.
func TestStaticPod(t *testing.T) {
	m := NewManifestFolder(t, rig.AgentMicrolet, watchOnly)
	s := New(t)
	m.Put("a.yaml", static(s, "a", Forever))
	first := runs(s, Patience, "a", nil)

	s.DeletePods(first.Name) // only the picture
	again := runs(s, Patience, "a", first)
	if ContainerID(again) != ContainerID(first) {
		t.Error("the end of the mirror restarted the container")
	}

	m.Put("a.yaml", static(s, "a", Forever+" # changed"))
	changed := runs(s, Patience, "a", again)
	if ContainerID(changed) == ContainerID(again) {
		t.Error("a changed manifest left the container")
	}
	m.Remove("a.yaml")
	s.Wait(Patience, "the mirror's end", s.AreGone(s.MirrorName("a")))

	if out, err := microletPod(s, static(s, "by-hand", Forever), "run-pod", "-", "--wait"); err != nil {
		t.Fatalf("run-pod: %v\n%s", err, out)
	}
	local := runs(s, Patience, "by-hand", nil)
	if err := Shared.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	Shared.WaitHealthy(t, Patience)
	if out, err := microletPod(s, static(s, "by-hand", Forever), "run-pod", "-", "--wait"); err != nil ||
		!bytes.Contains(out, []byte("unchanged")) {
		t.Errorf("run-pod after a restart: %v\n%s", err, out)
	}
	if now := runs(s, Patience, "by-hand", nil); ContainerID(now) != ContainerID(local) || now.UID != local.UID {
		t.Error("the agent's restart touched the pod")
	}
	if out, err := microletPod(s, nil, "rm-pod", "by-hand", "--namespace="+s.Namespace, "--wait"); err != nil {
		t.Errorf("rm-pod: %v\n%s", err, out)
	}
	s.Wait(Patience, "the mirror's end", s.AreGone(s.MirrorName("by-hand")))
}

// microletPod runs a command of microlet against the rig's agent.
func microletPod(s *Scene, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.T.Context(), Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Executable, append(args, "--runtime-dir="+s.RuntimeDir())...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return out, err
}
