//go:build long

package charts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/compose/e2e/internal/record"
	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

const (
	namespace = "microlet-system"
	release   = "helpers"
	// probed is how many pods are probed while their prober is replaced.
	probed = 40
)

// helpers are the services that run as pods.
var helpers = []role.Role{role.Prober, role.Stats, role.ImageGC, role.Evictor, role.NodeAPI}

// TestCharts installs the charts on a node whose podsync runs the helpers itself, upgrades one, rolls it back, lets it
// crash, deletes it and uninstalls all, while pods are probed. None of them notices.
func TestCharts(t *testing.T) {
	if scene.Placement != "" {
		t.Skipf("helpers are processes of their own, and the placement is %s", scene.Placement)
	}
	h := newHelm(t)
	names := make([]string, len(helpers))
	for i, r := range helpers {
		names[i] = string(r)
	}
	scene.Shared.UseMicrolet(t, "--external="+strings.Join(names, ","), "--helper-namespace="+namespace)
	s := scene.New(t)
	h.at(s)
	for _, tag := range []string{"one", "two"} {
		if err := rig.PushMicrolet(t.Context(), s.Executable, s.Registry(), tag); err != nil {
			t.Fatal(err)
		}
	}
	install(h, s)
	runsAs(t, s)
	w := createProbed(s)

	step(t, "upgrade", w, func() {
		h.run(upgrade(h, "--set", "image.tag=two", "--wait")...)
		awaitImage(s, "two")
	})
	step(t, "rollback", w, func() {
		h.run("rollback", release, "--namespace", namespace, "--wait", "--timeout", "3m")
		awaitImage(s, "one")
	})
	step(t, "test", w, func() { h.run("test", release, "--namespace", namespace, "--timeout", "2m") })
	step(t, "deleted helpers", w, func() { deleteHelpers(s) })
	step(t, "a prober that crashes", w, func() { crash(h, s) })
	step(t, "uninstall", w, func() {
		h.run("uninstall", release, "--namespace", namespace, "--wait", "--timeout", "2m")
		s.Wait(scene.Patience, "the end of the helpers", func(record.View) error {
			if left := pods(s, ""); len(left) > 0 {
				return fmt.Errorf("%d helpers are left", len(left))
			}
			return nil
		})
	})
	h.run("uninstall", "microlet", "--namespace", "default")
}

// step does something, and judges that no probed pod was touched.
func step(t *testing.T, name string, w *scene.Witness, do func()) {
	t.Helper()
	start := time.Now()
	do()
	w.Untouched()
	t.Logf("%s: %v", name, scene.Milliseconds(time.Since(start)))
}

// install installs both charts. The namespace's own is a release elsewhere.
func install(h *helm, s *scene.Scene) {
	h.t.Helper()
	h.run("install", "microlet", h.chart("microlet"), "--namespace", "default", "--set", "namespace.name="+namespace)
	h.t.Cleanup(func() {
		_, _, _ = s.RunKubectl(nil, "delete", "namespace", namespace, "--wait=false")
	})
	args := []string{
		"install", release, h.chart("microlet-helpers"), "--namespace", namespace, "--wait", "--timeout", "3m",
		"--set", "image.repository=" + rig.MicroletImage, "--set", "image.tag=one", "--set", "runtimeDir=" + s.RuntimeDir(),
		"--set", "peerCgroups[0]=" + s.AgentCgroup(), "--set", "rootDir=" + s.RootDir(),
		"--set", "podLogsDir=" + s.PodLogsDir(), "--set", "runtimeRootDir=" + s.RuntimeRoot(),
		"--set", "imagegcStateDir=" + s.ImageGCStateDir(),
	}
	for _, r := range helpers {
		args = append(args, "--set", fmt.Sprintf("helpers.%s.enabled=true", r))
	}
	h.run(args...)
}

// upgrade are the arguments of an upgrade that keeps the values.
func upgrade(h *helm, args ...string) []string {
	return append([]string{
		"upgrade", release, h.chart("microlet-helpers"), "--namespace", namespace, "--reuse-values", "--timeout", "3m",
	}, args...)
}

// pods are the helper pods of a role; an empty one is any.
func pods(s *scene.Scene, r role.Role) []corev1.Pod {
	s.T.Helper()
	selector := "microlet.dev/role"
	if r != "" {
		selector += "=" + string(r)
	}
	list, err := s.API.CoreV1().Pods(namespace).List(s.T.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		s.T.Fatal(err)
	}
	return list.Items
}

// runsAs judges that each service runs as the user that the node agent knows it by, and that status shows it.
func runsAs(t *testing.T, s *scene.Scene) {
	t.Helper()
	all, err := s.ProcessStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range helpers {
		id, err := role.Get(r)
		if err != nil {
			t.Fatal(err)
		}
		status := all[r]
		if status.State != "external" || status.PID == 0 {
			t.Errorf("microlet status shows %s as %+v", r, status)
		}
		p := pods(s, r)
		if len(p) != 1 {
			t.Fatalf("%d pods of %s", len(p), r)
		}
		hasIdentity(t, &p[0], id)
	}
}

// hasIdentity judges that a pod has the user, groups and capabilities of a service. One with capabilities is root, and
// "microlet run-as" gives it the rest.
func hasIdentity(t *testing.T, p *corev1.Pod, id role.Identity) {
	t.Helper()
	uid, gid, groups, capabilities := int64(id.UID), int64(id.GID), []int64(nil), []corev1.Capability(nil)
	for _, g := range id.Groups {
		groups = append(groups, int64(g))
	}
	if len(id.Capabilities) > 0 {
		uid, gid, capabilities = 0, 0, []corev1.Capability{"SETUID", "SETGID", "SETPCAP"}
		for _, c := range id.Capabilities {
			capabilities = append(capabilities, corev1.Capability(strings.TrimPrefix(c, "CAP_")))
		}
	}
	pod, container := p.Spec.SecurityContext, p.Spec.Containers[0].SecurityContext
	if *pod.RunAsUser != uid || *pod.RunAsGroup != gid || !slices.Equal(pod.SupplementalGroups, groups) {
		t.Errorf("%s has user %d, group %d and groups %v, want %d, %d, %v", id.Role, *pod.RunAsUser, *pod.RunAsGroup,
			pod.SupplementalGroups, uid, gid, groups)
	}
	if got := container.Capabilities.Add; !slices.Equal(got, capabilities) {
		t.Errorf("%s has capabilities %v, want %v", id.Role, got, capabilities)
	}
}

func createProbed(s *scene.Scene) *scene.Witness {
	s.T.Helper()
	var all []*corev1.Pod
	var names []string
	for i := range probed {
		p := scene.ProbedPod(fmt.Sprintf("probed-%d", i), scene.HTTPProbe)
		all, names = append(all, p), append(names, p.Name)
	}
	s.CreatePods(all...)
	s.WaitReady(scene.Patience, names...)
	return s.Witness(names...)
}

// awaitImage waits until every helper is one of an image, and is Ready.
func awaitImage(s *scene.Scene, tag string) {
	s.T.Helper()
	scene.Await(s.T, scene.Patience, "helpers of image "+tag, func() error {
		for _, p := range pods(s, "") {
			if p.Annotations["helm.sh/hook"] != "" {
				continue
			}
			if image := p.Spec.Containers[0].Image; !strings.HasSuffix(image, ":"+tag) || !isReady(&p) {
				return fmt.Errorf("%s has image %s, ready %t", p.Name, image, isReady(&p))
			}
		}
		return nil
	})
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// deleteHelpers deletes every helper pod but the prober, which is evicted by the API, and waits for the new ones.
func deleteHelpers(s *scene.Scene) {
	s.T.Helper()
	old := map[string]bool{}
	for _, p := range pods(s, "") {
		old[string(p.UID)] = true
		remove := func() error {
			return s.API.CoreV1().Pods(namespace).Delete(s.T.Context(), p.Name, metav1.DeleteOptions{})
		}
		if p.Labels["microlet.dev/role"] == string(role.Prober) {
			remove = func() error {
				return s.API.CoreV1().Pods(namespace).EvictV1(s.T.Context(), &policyv1.Eviction{ObjectMeta: p.ObjectMeta})
			}
		}
		if err := remove(); err != nil {
			s.T.Fatal(err)
		}
	}
	scene.Await(s.T, scene.Patience, "new helpers", func() error {
		ready := 0
		for _, p := range pods(s, "") {
			if !old[string(p.UID)] && isReady(&p) {
				ready++
			}
		}
		if ready != len(helpers) {
			return fmt.Errorf("%d of %d are ready", ready, len(helpers))
		}
		return nil
	})
}

// crash gives all helpers an argument that they refuse: those that have gone crash, and a prober stays.
func crash(h *helm, s *scene.Scene) {
	s.T.Helper()
	h.run(upgrade(h, "--set", "helpers.stats.extraArgs[0]=--no-such-flag",
		"--set", "helpers.prober.extraArgs[0]=--no-such-flag")...)
	for _, r := range []role.Role{role.Stats, role.Prober} {
		scene.Await(s.T, scene.Patience, string(r)+" to crash", func() error {
			for _, p := range pods(s, r) {
				for _, c := range p.Status.ContainerStatuses {
					if c.RestartCount > 1 {
						return nil
					}
				}
			}
			return fmt.Errorf("no pod of %s has restarted twice", r)
		})
	}
	// A pod that comes meanwhile is probed by the prober that has stayed.
	late := scene.ProbedPod("late", scene.HTTPProbe)
	s.CreatePods(late)
	s.WaitReady(scene.Patience, late.Name)
	h.run("rollback", release, "--namespace", namespace, "--wait", "--timeout", "3m")
}
