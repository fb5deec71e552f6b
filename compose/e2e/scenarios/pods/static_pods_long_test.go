//go:build long

package pods

import (
	"testing"
	"time"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
)

// TestStaticPodsTable: what can be done to a manifest, and that no other suffers from it.
func TestStaticPodsTable(t *testing.T) {
	m := scene.NewManifestFolder(t, rig.AgentMicrolet)
	s := scene.New(t)
	m.Put("other.yaml", static(s, "other", scene.Forever))
	other := runs(s, scene.Patience, "other", nil)

	m.Put("a.yaml", static(s, "a", scene.Forever))
	a := runs(s, scene.Patience, "a", nil)

	// Renamed: its path is part of its UID, so another pod follows.
	m.Rename("a.yaml", "b.yaml")
	b := runs(s, scene.Patience, "a", a)
	if scene.ContainerID(a) == scene.ContainerID(b) {
		t.Error("a renamed manifest is the same pod")
	}

	// Broken: its pod stays until the relist, and comes back with the manifest.
	m.Put("b.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n"))
	s.Wait(scene.Patience, "the end of the broken manifest's pod", s.AreGone(s.MirrorName("a")))
	m.Put("b.yaml", static(s, "a", scene.Forever))
	runs(s, scene.Patience, "a", b)

	// The manifest is removed while podsync is down: the next podsync ends the pod.
	if err := scene.Shared.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Remove("b.yaml")
	m.Put("c.yaml", static(s, "c", scene.Forever))
	if err := scene.Shared.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs(s, scene.Patience, "c", nil)
	s.Wait(scene.Patience, "the end of the pod whose manifest was removed", s.AreGone(s.MirrorName("a")))

	// Without an apiserver: static pods start, and their mirrors follow.
	if err := scene.Shared.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Put("d.yaml", static(s, "d", scene.Forever))
	time.Sleep(5 * time.Second) // the outage
	if err := scene.Shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs(s, scene.Patience, "d", nil)

	if now := runs(s, scene.Patience, "other", nil); scene.ContainerID(now) != scene.ContainerID(other) ||
		now.UID != other.UID {
		t.Error("what was done to other manifests touched this one's pod")
	}
	for _, file := range []string{"other.yaml", "c.yaml", "d.yaml"} {
		m.Remove(file)
	}
	s.Wait(scene.Patience, "the end of all", s.AreGone(s.MirrorName("other"), s.MirrorName("c"), s.MirrorName("d")))
}

// TestStaticPodsAreHandedOver: both agents make the same UID of a manifest, so no container notices the change.
func TestStaticPodsAreHandedOver(t *testing.T) {
	m := scene.NewManifestFolder(t, rig.AgentKubelet)
	s := scene.New(t)
	m.Put("a.yaml", static(s, "a", scene.Forever))
	first := runs(s, scene.Patience, "a", nil)
	for _, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet, rig.AgentMicrolet} {
		scene.Shared.SwitchTo(t, agent, m.Flag())
		time.Sleep(10 * time.Second) // in which the agent could end what it takes for another pod
		if now := runs(s, scene.Patience, "a", nil); scene.ContainerID(now) != scene.ContainerID(first) ||
			now.UID != first.UID ||
			now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("%s made another pod of the manifest: container %s, was %s", agent, scene.ContainerID(now),
				scene.ContainerID(first))
		}
	}
	m.Remove("a.yaml")
	s.Wait(scene.Patience, "the mirror's end", s.AreGone(s.MirrorName("a")))
}
