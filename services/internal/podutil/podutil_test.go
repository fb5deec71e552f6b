package podutil

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(pairs ...string) v1.ResourceList {
	l := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func requiring(all ...v1.ResourceRequirements) *v1.Pod {
	p := &v1.Pod{}
	for _, r := range all {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Resources: r})
	}
	return p
}

func TestQOSClass(t *testing.T) {
	full := v1.ResourceRequirements{
		Requests: list("cpu", "1", "memory", "1Gi"),
		Limits:   list("cpu", "1", "memory", "1Gi"),
	}
	request := v1.ResourceRequirements{Requests: list("cpu", "1")}
	cpuOnly := v1.ResourceRequirements{Requests: list("cpu", "1"), Limits: list("cpu", "1")}
	none := v1.ResourceRequirements{}
	podLevel := requiring(none)
	podLevel.Spec.Resources = &full
	status := requiring(none)
	status.Status.QOSClass = v1.PodQOSGuaranteed
	for text, c := range map[string]struct {
		pod  *v1.Pod
		want v1.PodQOSClass
	}{
		"none":                 {requiring(none), v1.PodQOSBestEffort},
		"no containers":        {requiring(), v1.PodQOSBestEffort},
		"full":                 {requiring(full, full), v1.PodQOSGuaranteed},
		"full and none":        {requiring(full, none), v1.PodQOSBurstable},
		"none and full":        {requiring(none, full), v1.PodQOSBurstable},
		"request":              {requiring(request), v1.PodQOSBurstable},
		"burstable, full":      {requiring(request, full), v1.PodQOSBurstable},
		"no memory":            {requiring(cpuOnly), v1.PodQOSBurstable},
		"pod level":            {podLevel, v1.PodQOSGuaranteed},
		"status decides":       {status, v1.PodQOSGuaranteed},
		"of an init container": {withInit(requiring(full), request), v1.PodQOSBurstable},
		"zero is no amount":    {requiring(v1.ResourceRequirements{Requests: list("cpu", "0")}), v1.PodQOSBestEffort},
	} {
		if got := QOSClass(c.pod); got != c.want {
			t.Errorf("%s: %s, want %s", text, got, c.want)
		}
	}
}

func withInit(p *v1.Pod, r v1.ResourceRequirements) *v1.Pod {
	p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Resources: r})
	return p
}

func TestKinds(t *testing.T) {
	annotated := func(key, value string) *v1.Pod {
		p := &v1.Pod{}
		p.Annotations = map[string]string{key: value}
		return p
	}
	prior := func(priority int32) *v1.Pod { return &v1.Pod{Spec: v1.PodSpec{Priority: &priority}} }
	for text, c := range map[string]struct {
		pod                      *v1.Pod
		static, mirror, critical bool
	}{
		"plain":                {&v1.Pod{}, false, false, false},
		"of the API":           {annotated(ConfigSourceAnnotation, "api"), false, false, false},
		"of a file":            {annotated(ConfigSourceAnnotation, "file"), true, false, true},
		"of an empty source":   {annotated(ConfigSourceAnnotation, ""), true, false, true},
		"mirror":               {annotated(v1.MirrorPodAnnotationKey, "hash"), false, true, true},
		"of a user's priority": {prior(SystemCriticalPriority - 1), false, false, false},
		"of the system's":      {prior(SystemCriticalPriority), false, false, true},
	} {
		if static, mirror, critical := IsStatic(c.pod), IsMirror(c.pod), IsCritical(c.pod); static != c.static ||
			mirror != c.mirror || critical != c.critical {
			t.Errorf("%s: static %t, mirror %t, critical %t; want %t, %t, %t", text, static, mirror, critical, c.static,
				c.mirror, c.critical)
		}
	}
}

func TestContainers(t *testing.T) {
	s := &v1.PodSpec{
		InitContainers: []v1.Container{{Name: "i"},
			{Name: "s", RestartPolicy: new(v1.ContainerRestartPolicyAlways)},
			{Name: "n", RestartPolicy: new(v1.ContainerRestartPolicyNever)}},
		Containers:          []v1.Container{{Name: "a"}, {Name: "b"}},
		EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"}}},
	}
	var names, all, sidecars []string
	for c := range Containers(s) {
		if names = append(names, c.Name); IsSidecar(c) {
			sidecars = append(sidecars, c.Name)
		}
	}
	for c := range AllContainers(s) {
		all = append(all, c.Name)
		c.Image = "changed"
	}
	if want := []string{"i", "s", "n", "a", "b"}; !slices.Equal(names, want) || !slices.Equal(all, append(want, "e")) ||
		!slices.Equal(sidecars, []string{"s"}) {
		t.Errorf("containers %v, all %v, sidecars %v", names, all, sidecars)
	}
	var long []string
	for c := range LongRunning(s) {
		long = append(long, c.Name)
	}
	if want := []string{"s", "a", "b"}; !slices.Equal(long, want) {
		t.Errorf("long-running containers %v, want %v", long, want)
	}
	for _, last := range []string{"s", "a"} {
		for c := range LongRunning(s) {
			if c.Name == last {
				break
			}
		}
	}
	if !IsInit(s, "s") || IsInit(s, "a") || IsInit(s, "e") || !IsEphemeral(s, "e") || IsEphemeral(s, "i") ||
		IsEphemeral(s, "b") {
		t.Error("a container is taken for one of another kind")
	}
	if c := Container(s, "e"); c == nil || c.Image != "changed" || s.EphemeralContainers[0].Image != "changed" ||
		s.Containers[1].Image != "changed" {
		t.Error("the containers are copies of those in the spec")
	}
	if Container(s, "x") != nil {
		t.Error("a container that is not there")
	}
	for range Containers(s) {
		break // a loop may end at any container
	}
	for c := range AllContainers(s) {
		if c.Name == "e" {
			break
		}
	}
}

func TestStatus(t *testing.T) {
	for phase, want := range map[v1.PodPhase]bool{
		"":              false,
		v1.PodPending:   false,
		v1.PodRunning:   false,
		v1.PodUnknown:   false,
		v1.PodSucceeded: true,
		v1.PodFailed:    true,
	} {
		if got := IsTerminal(phase); got != want {
			t.Errorf("%q is terminal: %t, want %t", phase, got, want)
		}
	}
	s := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "a"}, {Name: "b"}}}
	if ContainerStatus(s.ContainerStatuses, "b") != &s.ContainerStatuses[1] ||
		ContainerStatus(s.ContainerStatuses, "c") != nil {
		t.Error("the status of another container")
	}
	SetCondition(s, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionFalse})
	SetCondition(s, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	SetCondition(s, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue})
	want := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue},
		{Type: v1.PodScheduled, Status: v1.ConditionTrue}}
	if !slices.Equal(s.Conditions, want) || Condition(s.Conditions, v1.PodScheduled) != &s.Conditions[1] ||
		Condition(s.Conditions, "x") != nil {
		t.Errorf("conditions %+v", s.Conditions)
	}
}
