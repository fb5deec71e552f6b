package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// watchOnly has the agent list its folder of manifests so rarely that what it notices it has from its watch.
const watchOnly = "--file-check-frequency=1h"

// static is a manifest of a pod in the scenario's namespace.
func static(s *scene.Scene, name, script string) []byte {
	s.T.Helper()
	return s.Manifest(scene.ScriptPod(name, script))
}

// runs waits for a Ready mirror pod, other than the one before, and returns it.
func runs(s *scene.Scene, limit time.Duration, name string, before *corev1.Pod) *corev1.Pod {
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

// TestStaticPod: a manifest is put, changed and removed, its mirror deleted; and a pod is run by hand.
func TestStaticPod(t *testing.T) {
	m := scene.NewManifestFolder(t, rig.AgentMicrolet, watchOnly)
	s := scene.New(t)
	m.Put("a.yaml", static(s, "a", scene.Forever))
	first := runs(s, scene.Patience, "a", nil)

	s.DeletePods(first.Name) // only the picture
	again := runs(s, scene.Patience, "a", first)
	if scene.ContainerID(again) != scene.ContainerID(first) {
		t.Error("the end of the mirror restarted the container")
	}

	m.Put("a.yaml", static(s, "a", scene.Forever+" # changed"))
	changed := runs(s, scene.Patience, "a", again)
	if scene.ContainerID(changed) == scene.ContainerID(again) {
		t.Error("a changed manifest left the container")
	}
	m.Remove("a.yaml")
	s.Wait(scene.Patience, "the mirror's end", s.AreGone(s.MirrorName("a")))

	if out, err := microletPod(s, static(s, "by-hand", scene.Forever), "run-pod", "-", "--wait"); err != nil {
		t.Fatalf("run-pod: %v\n%s", err, out)
	}
	local := runs(s, scene.Patience, "by-hand", nil)
	if err := scene.Shared.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	scene.Shared.WaitHealthy(t, scene.Patience)
	if out, err := microletPod(s, static(s, "by-hand", scene.Forever), "run-pod", "-", "--wait"); err != nil ||
		!bytes.Contains(out, []byte("unchanged")) {
		t.Errorf("run-pod after a restart: %v\n%s", err, out)
	}
	if now := runs(s, scene.Patience, "by-hand", nil); scene.ContainerID(now) != scene.ContainerID(local) ||
		now.UID != local.UID {
		t.Error("the agent's restart touched the pod")
	}
	if out, err := microletPod(s, nil, "rm-pod", "by-hand", "--namespace="+s.Namespace, "--wait"); err != nil {
		t.Errorf("rm-pod: %v\n%s", err, out)
	}
	s.Wait(scene.Patience, "the mirror's end", s.AreGone(s.MirrorName("by-hand")))
}

// microletPod runs a command of microlet against the rig's agent.
func microletPod(s *scene.Scene, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.T.Context(), scene.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Executable, append(args, "--runtime-dir="+s.RuntimeDir())...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return out, err
}
