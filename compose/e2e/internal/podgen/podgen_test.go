package podgen

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func make100(seed uint64, without ...string) ([]*corev1.Pod, map[string]int) {
	g := New(Options{
		Seed:    seed,
		Node:    "node",
		Image:   "image",
		Server:  "server",
		Answers: 8080,
		Seccomp: "profile.json",
		HostDir: "/host",
		Without: without,
	})
	var pods []*corev1.Pod
	used := map[string]int{}
	for i := range 100 {
		p, traits := g.Pod(fmt.Sprintf("p%d", i))
		pods = append(pods, p)
		for _, t := range traits {
			used[t]++
		}
	}
	return pods, used
}

func TestSameSeedSamePods(t *testing.T) {
	first, _ := make100(7)
	second, _ := make100(7)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the same seed gave other pods:\n%s", diff)
	}
	other, _ := make100(8)
	if cmp.Equal(first, other) {
		t.Error("another seed gave the same pods")
	}
}

func TestEveryTraitIsDealt(t *testing.T) {
	for seed := range uint64(20) {
		_, used := make100(seed)
		for _, name := range Traits() {
			if used[name] == 0 {
				t.Errorf("seed %d: no pod has the trait %q", seed, name)
			}
		}
		_, used = make100(seed, "sidecar")
		if used["sidecar"] != 0 {
			t.Errorf("seed %d: a trait that is left out was dealt", seed)
		}
	}
}

func TestTraitsHaveNamesOfTheirOwn(t *testing.T) {
	names := Traits()
	slices.Sort(names)
	if len(slices.Compact(names)) != len(Traits()) {
		t.Errorf("two traits have one name: %v", names)
	}
}

func TestPodsThatEndHaveNothingThatRunsForEver(t *testing.T) {
	for seed := range uint64(50) {
		pods, _ := make100(seed)
		for _, p := range pods {
			if Ends(p) && (p.Spec.RestartPolicy == "" || p.Spec.RestartPolicy == corev1.RestartPolicyAlways) {
				t.Errorf("seed %d: %s ends and is restarted", seed, p.Name)
			}
		}
	}
}

func TestFields(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		HostNetwork: true,
		Containers: []corev1.Container{{
			Name: "a",
			Env: []corev1.EnvVar{{
				Name:      "X",
				ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "f"}},
			}},
		}},
		Volumes: []corev1.Volume{{
			Name:         "v",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}},
	}}
	want := []string{
		"spec.containers", "spec.containers.env", "spec.containers.env.name", "spec.containers.env.valueFrom",
		"spec.containers.env.valueFrom.fieldRef", "spec.containers.env.valueFrom.fieldRef.fieldPath",
		"spec.containers.name",
		"spec.hostNetwork", "spec.volumes", "spec.volumes.emptyDir", "spec.volumes.name",
	}
	if diff := cmp.Diff(want, Fields(p)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestTraitsOfPodsThatLastAndEndDoNotMeet(t *testing.T) {
	lasting, ending := map[string]bool{}, map[string]bool{}
	for _, trait := range all() {
		lasting[trait.name], ending[trait.name] = trait.lasting, trait.alone == end
	}
	for seed := range uint64(50) {
		g := New(Options{
			Seed:    seed,
			Image:   "image",
			Server:  "server",
			Answers: 8080,
			Seccomp: "profile.json",
			HostDir: "/host",
			Traits:  8,
		})
		for range 100 {
			_, traits := g.Pod("p")
			if slices.ContainsFunc(traits, func(n string) bool { return lasting[n] }) &&
				slices.ContainsFunc(traits, func(n string) bool { return ending[n] }) {
				t.Fatalf("seed %d: one pod has the traits %q", seed, traits)
			}
		}
	}
}
