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

// manifests is a folder of static pods' manifests.
type manifests struct {
	t   *testing.T
	dir string
}

// newManifests has the agent, with these arguments, read a folder until the test ends.
func newManifests(t *testing.T, agent rig.Agent, args ...string) *manifests {
	t.Helper()
	m := newFolder(t)
	shared.switchTo(t, agent, append([]string{m.flag()}, args...)...)
	t.Cleanup(func() { shared.switchTo(t, firstAgent) })
	return m
}

// newFolder makes a folder of manifests on the node, which no agent reads yet.
func newFolder(t *testing.T) *manifests {
	t.Helper()
	if !shared.OnMachine() {
		return &manifests{t: t, dir: t.TempDir()}
	}
	// A reboot empties /tmp.
	m := &manifests{t: t, dir: fmt.Sprintf("/etc/kubernetes/manifests-%d", folders.Add(1))}
	if err := shared.mkdir(m.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := shared.there(context.Background(), "rm", "-r", m.dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

var folders atomic.Int64

func (m *manifests) flag() string { return "--pod-manifest-path=" + m.dir }

// put writes a manifest as one should: whole, by a rename.
func (m *manifests) put(file string, content []byte) {
	m.t.Helper()
	hidden := filepath.Join(m.dir, "."+file)
	if err := shared.write(hidden, content); err != nil {
		m.t.Fatal(err)
	}
	m.rename("."+file, file)
}

func (m *manifests) rename(from, to string) {
	m.t.Helper()
	from, to = filepath.Join(m.dir, from), filepath.Join(m.dir, to)
	var err error
	if shared.OnMachine() {
		_, err = shared.there(m.t.Context(), "mv", "-T", from, to)
	} else {
		err = os.Rename(from, to)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *manifests) remove(file string) {
	m.t.Helper()
	path := filepath.Join(m.dir, file)
	var err error
	if shared.OnMachine() {
		_, err = shared.there(m.t.Context(), "rm", path)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// static is a manifest of a pod in the scenario's namespace.
func (s *scene) static(name, script string) []byte {
	s.t.Helper()
	return s.manifest(scripted(name, script))
}

// manifest is a pod of the scenario's namespace as a file has it.
func (s *scene) manifest(p *corev1.Pod) []byte {
	s.t.Helper()
	p.APIVersion, p.Kind, p.Namespace = "v1", "Pod", s.ns
	data, err := yaml.Marshal(p)
	if err != nil {
		s.t.Fatal(err)
	}
	return data
}

// mirror is the name of a static pod in the API.
func (s *scene) mirror(name string) string { return name + "-" + s.NodeName() }

// runs waits for a Ready mirror pod, other than the one before, and returns it.
func (s *scene) runs(limit time.Duration, name string, before *corev1.Pod) *corev1.Pod {
	s.t.Helper()
	var found *corev1.Pod
	s.wait(limit, "a Ready mirror of "+name, func(v record.View) error {
		if err := s.areReady(s.mirror(name))(v); err != nil {
			return err
		}
		found = v.Pod(s.ns, s.mirror(name))
		if before != nil && found.UID == before.UID {
			return errors.New("it is the one from before")
		}
		return nil
	})
	for _, key := range []string{corev1.MirrorPodAnnotationKey, "kubernetes.io/config.hash",
		"kubernetes.io/config.source"} {
		if found.Annotations[key] == "" {
			s.t.Errorf("mirror %s has no annotation %s", found.Name, key)
		}
	}
	return found
}

func containerID(p *corev1.Pod) string { return p.Status.ContainerStatuses[0].ContainerID }

// TestStaticPod: a manifest is put, changed and removed, its mirror deleted; and a pod is run by hand.
func TestStaticPod(t *testing.T) {
	m := newManifests(t, rig.AgentMicrolet, watchOnly)
	s := newScene(t)
	m.put("a.yaml", s.static("a", forever))
	first := s.runs(patience, "a", nil)

	s.remove(first.Name) // only the picture
	again := s.runs(patience, "a", first)
	if containerID(again) != containerID(first) {
		t.Error("the end of the mirror restarted the container")
	}

	m.put("a.yaml", s.static("a", forever+" # changed"))
	changed := s.runs(patience, "a", again)
	if containerID(changed) == containerID(again) {
		t.Error("a changed manifest left the container")
	}
	m.remove("a.yaml")
	s.wait(patience, "the mirror's end", s.areGone(s.mirror("a")))

	if out, err := s.microletPod(s.static("by-hand", forever), "run-pod", "-", "--wait"); err != nil {
		t.Fatalf("run-pod: %v\n%s", err, out)
	}
	local := s.runs(patience, "by-hand", nil)
	if err := shared.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	shared.waitHealthy(t, patience)
	if out, err := s.microletPod(s.static("by-hand", forever), "run-pod", "-", "--wait"); err != nil ||
		!bytes.Contains(out, []byte("unchanged")) {
		t.Errorf("run-pod after a restart: %v\n%s", err, out)
	}
	if now := s.runs(patience, "by-hand", nil); containerID(now) != containerID(local) || now.UID != local.UID {
		t.Error("the agent's restart touched the pod")
	}
	if out, err := s.microletPod(nil, "rm-pod", "by-hand", "--namespace="+s.ns, "--wait"); err != nil {
		t.Errorf("rm-pod: %v\n%s", err, out)
	}
	s.wait(patience, "the mirror's end", s.areGone(s.mirror("by-hand")))
}

// microletPod runs a command of microlet against the rig's agent.
func (s *scene) microletPod(stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.microlet, append(args, "--runtime-dir="+s.RuntimeDir())...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return out, err
}
