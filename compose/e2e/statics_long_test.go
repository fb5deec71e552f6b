//go:build long && !bench

package e2e

import (
	"testing"
	"time"

	"github.com/microlet/microlet/compose/rig"
)

// TestStaticPodsTable: what can be done to a manifest, and that no other suffers from it.
func TestStaticPodsTable(t *testing.T) {
	m := NewManifestFolder(t, rig.AgentMicrolet)
	s := New(t)
	m.Put("other.yaml", static(s, "other", Forever))
	other := runs(s, Patience, "other", nil)

	m.Put("a.yaml", static(s, "a", Forever))
	a := runs(s, Patience, "a", nil)

	// Renamed: its path is part of its UID, so another pod follows.
	m.Rename("a.yaml", "b.yaml")
	b := runs(s, Patience, "a", a)
	if ContainerID(a) == ContainerID(b) {
		t.Error("a renamed manifest is the same pod")
	}

	// Broken: its pod stays until the relist, and comes back with the manifest.
	m.Put("b.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n"))
	s.Wait(Patience, "the end of the broken manifest's pod", s.AreGone(s.MirrorName("a")))
	m.Put("b.yaml", static(s, "a", Forever))
	runs(s, Patience, "a", b)

	// Removed while nobody looks: the next podsync ends it.
	if err := Shared.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Remove("b.yaml")
	m.Put("c.yaml", static(s, "c", Forever))
	if err := Shared.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs(s, Patience, "c", nil)
	s.Wait(Patience, "the end of the pod whose manifest was removed", s.AreGone(s.MirrorName("a")))

	// Without an apiserver: static pods start, and their mirrors follow.
	if err := Shared.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Put("d.yaml", static(s, "d", Forever))
	time.Sleep(5 * time.Second) // the outage
	if err := Shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs(s, Patience, "d", nil)

	if now := runs(s, Patience, "other", nil); ContainerID(now) != ContainerID(other) || now.UID != other.UID {
		t.Error("what was done to other manifests touched this one's pod")
	}
	for _, file := range []string{"other.yaml", "c.yaml", "d.yaml"} {
		m.Remove(file)
	}
	s.Wait(Patience, "the end of all", s.AreGone(s.MirrorName("other"), s.MirrorName("c"), s.MirrorName("d")))
}

// TestStaticPodsAreHandedOver: both agents make the same UID of a manifest, so no container notices the change.
func TestStaticPodsAreHandedOver(t *testing.T) {
	m := NewManifestFolder(t, rig.AgentKubelet)
	s := New(t)
	m.Put("a.yaml", static(s, "a", Forever))
	first := runs(s, Patience, "a", nil)
	for _, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet, rig.AgentMicrolet} {
		Shared.SwitchTo(t, agent, m.Flag())
		time.Sleep(10 * time.Second) // in which the agent could end what it takes for another pod
		if now := runs(s, Patience, "a", nil); ContainerID(now) != ContainerID(first) || now.UID != first.UID ||
			now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("%s made another pod of the manifest: container %s, was %s", agent, ContainerID(now),
				ContainerID(first))
		}
	}
	m.Remove("a.yaml")
	s.Wait(Patience, "the mirror's end", s.AreGone(s.MirrorName("a")))
}
