package volumes

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// next returns an Event that was sent, or nothing.
func next(events <-chan string) string {
	select {
	case e := <-events:
		return e
	default:
		return ""
	}
}

// A folder that a pod of another group has stays that group's, and the second pod has one Event of it.
func TestALocalVolumeOfAnotherGroup(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	c := &claimed{volumes: map[string]*v1.PersistentVolume{"data": persistentVolume("pv", local(dir))}}
	m, events := eventfulManager(t, root, "boot", c, "u1", "u2", "u3")
	want := "Warning AlreadyMountedVolume The requested fsGroup is 4243, but the volume pv has GID 4242. " +
		"The volume may not be shareable."
	for _, step := range []struct {
		pod   *v1.Pod
		group int64
		want  string
	}{
		{claimant("u1", false), 4242, ""}, {claimant("u2", false), 4243, want}, {claimant("u3", false), 4242, ""},
	} {
		step.pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &step.group}
		for range 2 {
			if _, err := m.Mount(t.Context(), step.pod); err != nil {
				t.Fatal(err)
			}
			if got := next(events.Events); got != step.want {
				t.Errorf("pod %s has the Event %q, want %q", step.pod.UID, got, step.want)
			}
			step.want = "" // it has it
		}
	}
}
