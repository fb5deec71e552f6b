//go:build long && !bench

package e2e

import (
	"testing"
	"time"

	"github.com/microlet/microlet/compose/rig"
)

// TestStaticPodsTable: what can be done to a manifest, and that no other suffers from it.
func TestStaticPodsTable(t *testing.T) {
	m := newManifests(t, rig.AgentMicrolet)
	s := newScene(t)
	m.put("other.yaml", s.static("other", forever))
	other := s.runs(patience, "other", nil)

	m.put("a.yaml", s.static("a", forever))
	a := s.runs(patience, "a", nil)

	// Renamed: its path is part of its UID, so another pod follows.
	m.rename("a.yaml", "b.yaml")
	b := s.runs(patience, "a", a)
	if containerID(a) == containerID(b) {
		t.Error("a renamed manifest is the same pod")
	}

	// Broken: its pod stays until the relist, and comes back with the manifest.
	m.put("b.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n"))
	s.wait(patience, "the end of the broken manifest's pod", s.areGone(s.mirror("a")))
	m.put("b.yaml", s.static("a", forever))
	s.runs(patience, "a", b)

	// Removed while nobody looks: the next podsync ends it.
	if err := shared.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.remove("b.yaml")
	m.put("c.yaml", s.static("c", forever))
	if err := shared.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.runs(patience, "c", nil)
	s.wait(patience, "the end of the pod whose manifest was removed", s.areGone(s.mirror("a")))

	// Without an apiserver: static pods start, and their mirrors follow.
	if err := shared.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.put("d.yaml", s.static("d", forever))
	time.Sleep(5 * time.Second) // the outage
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.runs(patience, "d", nil)

	if now := s.runs(patience, "other", nil); containerID(now) != containerID(other) || now.UID != other.UID {
		t.Error("what was done to other manifests touched this one's pod")
	}
	for _, file := range []string{"other.yaml", "c.yaml", "d.yaml"} {
		m.remove(file)
	}
	s.wait(patience, "the end of all", s.areGone(s.mirror("other"), s.mirror("c"), s.mirror("d")))
}

// TestStaticPodsAreHandedOver: both agents make the same UID of a manifest, so no container notices the change.
func TestStaticPodsAreHandedOver(t *testing.T) {
	m := newManifests(t, rig.AgentKubelet)
	s := newScene(t)
	m.put("a.yaml", s.static("a", forever))
	first := s.runs(patience, "a", nil)
	for _, agent := range []rig.Agent{rig.AgentMicrolet, rig.AgentKubelet, rig.AgentMicrolet} {
		shared.switchTo(t, agent, m.flag())
		time.Sleep(10 * time.Second) // in which the agent could end what it takes for another pod
		if now := s.runs(patience, "a", nil); containerID(now) != containerID(first) || now.UID != first.UID ||
			now.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("%s made another pod of the manifest: container %s, was %s", agent, containerID(now),
				containerID(first))
		}
	}
	m.remove("a.yaml")
	s.wait(patience, "the mirror's end", s.areGone(s.mirror("a")))
}
