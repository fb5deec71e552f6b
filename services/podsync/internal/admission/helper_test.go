package admission

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podOf is one of a namespace, changed.
func podOf(namespace string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: v1.PodSpec{
		SecurityContext: &v1.PodSecurityContext{},
		InitContainers:  []v1.Container{{Name: "i", SecurityContext: &v1.SecurityContext{}}},
		Containers:      []v1.Container{{Name: "c"}},
	}}
	for _, f := range change {
		f(p)
	}
	return p
}

func mounts(paths ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		for _, path := range paths {
			p.Spec.Volumes = append(p.Spec.Volumes,
				v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}})
		}
	}
}

func subPath(path string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "host", MountPath: "/x", SubPath: path}}
	}
}

func labelled(value string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Labels = map[string]string{"microlet.dev/role": value} }
}

func hostPID(p *v1.Pod) { p.Spec.HostPID = true }

func hostNetwork(p *v1.Pod) { p.Spec.HostNetwork = true }

func hostIPC(p *v1.Pod) { p.Spec.HostIPC = true }

func ownUsers(p *v1.Pod) { p.Spec.HostUsers = new(false) }

func hostUsers(p *v1.Pod) { p.Spec.HostUsers = new(true) }

func hasVolume(source v1.VolumeSource) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: source}) }
}

var (
	secretVolume = hasVolume(v1.VolumeSource{Secret: &v1.SecretVolumeSource{}})
	scratch      = hasVolume(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	claimed      = hasVolume(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}})
)

func user(uid int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.SecurityContext.RunAsUser = &uid }
}

func group(gid int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.SecurityContext.RunAsGroup = &gid }
}

func fsGroup(gid int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.SecurityContext.FSGroup = &gid }
}

func groups(gids ...int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.SecurityContext.SupplementalGroups = gids }
}

func containerUser(uid int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.InitContainers[0].SecurityContext.RunAsUser = &uid }
}

func containerGroup(gid int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.InitContainers[0].SecurityContext.RunAsGroup = &gid }
}

func TestHelpers(t *testing.T) {
	h := Helpers{Namespace: "agents", Folders: []string{"/run/microlet", "/var/run/microlet"}}
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want string // part of the message; empty admits
	}{
		"nothing":                   {pod: podOf("ns")},
		"another folder":            {pod: podOf("ns", mounts("/run/microlet-rig", "/run", "/"))},
		"the folder":                {podOf("ns", mounts("/run/microlet")), `volume "host" mounts /run/microlet of`},
		"the folder, oddly spelled": {podOf("ns", mounts("/tmp", "//run/x/../microlet/")), "own folder /run/microlet"},
		"below it":                  {podOf("ns", mounts("/run/microlet/sock")), "--helper-namespace"},
		"by a process of the host": {podOf("ns", mounts("/proc/1/root/proc/self/task/1/root/run/microlet/cri")),
			"own folder"},
		"by the folder of a process": {podOf("ns", mounts("/proc/1/cwd/run/microlet")), "own folder"},
		"by a subPath": {podOf("ns", mounts("/"), subPath("run/microlet/sock")),
			"mounts /run/microlet/sock of"},
		"another subPath": {pod: podOf("ns", mounts("/"), subPath("run/other"))},
		"its other name": {podOf("ns", mounts("/var/run/microlet/nkeys")),
			`only pods of the namespace "agents" with the label microlet.dev/role may`},
		"the folder, by a helper":        {pod: podOf("agents", labelled("prober"), mounts("/run/microlet"))},
		"the folder, without the label":  {podOf("agents", mounts("/run/microlet")), "own folder"},
		"the folder, by the label alone": {podOf("ns", labelled("prober"), mounts("/run/microlet")), "own folder"},
		"a host process's role":          {podOf("agents", labelled("bus")), `label microlet.dev/role is "bus"`},
		"an unknown role":                {podOf("agents", labelled("root")), "[prober imagegc stats evictor nodeapi]"},
		"another namespace's label":      {pod: podOf("ns", labelled("bus"))},
		"a user alone": {podOf("ns", user(47104)),
			"the pod runs as user 47104, which is the node agent's service prober: only pods"},
		"a user in a user namespace": {pod: podOf("ns", user(47104), groups(47100), ownUsers)},
		"a container's user there": {pod: podOf("ns", containerUser(47104), containerGroup(47100), ownUsers,
			secretVolume)},
		"a user there, with the host's files": {podOf("ns", user(47104), ownUsers, mounts("/tmp")), "user 47104"},
		"a user there, with files for others": {podOf("ns", containerUser(47104), ownUsers, scratch), "user 47104"},
		"a group there, with a claim":         {podOf("ns", fsGroup(47109), ownUsers, secretVolume, claimed), "group 47109"},
		"the folder, in a user namespace":     {podOf("ns", ownUsers, mounts("/run/microlet")), "own folder"},
		"a user, with the host's users said":  {podOf("ns", user(47104), hostUsers), "user 47104"},
		"a user with the host":                {podOf("ns", user(47104), mounts("/tmp")), "user 47104"},
		"a user with the host's processes":    {podOf("ns", user(47104), hostPID), "user 47104"},
		"a user with the host's network":      {podOf("ns", user(47103), group(47100), hostNetwork), "service nodestatus"},
		"a user alone, by a helper":           {pod: podOf("agents", labelled("prober"), user(47104), groups(47100))},
		"a container's user alone":            {podOf("ns", containerUser(47108)), `container "i" runs as user 47108`},
		"a container's group alone": {podOf("ns", containerGroup(47100)),
			`container "i" is in the group 47100 (runAsGroup)`},
		"runAsGroup alone":            {podOf("ns", group(47100)), "group 47100 (runAsGroup)"},
		"fsGroup alone":               {podOf("ns", fsGroup(47109)), "group 47109 (fsGroup)"},
		"supplementalGroups alone":    {podOf("ns", groups(47100)), "group 47100 (supplementalGroups)"},
		"a user without an owner yet": {podOf("ns", user(47100), mounts("/tmp")), "reserved for the node agent"},
		"a user, by a helper": {pod: podOf("agents", labelled("prober"), user(47104), group(47100),
			mounts("/run/microlet"))},
		"another role's user, by a helper": {podOf("agents", labelled("prober"), user(47108), mounts("/run/microlet")),
			"service nodeapi"},
		"a container's user": {podOf("ns", containerUser(47108), mounts("/tmp")),
			`container "i" runs as user 47108, which is the node agent's service nodeapi`},
		"a container's group": {podOf("ns", containerGroup(47100), mounts("/tmp")),
			`container "i" is in the group 47100 (runAsGroup)`},
		"the group of the sockets": {podOf("ns", groups(1, 47100), mounts("/run")), "group 47100 (supplementalGroups)"},
		"the group of the logs":    {podOf("ns", groups(47109), mounts("/var/log")), "group 47109 (supplementalGroups)"},
		"as fsGroup":               {podOf("ns", fsGroup(47109), mounts("/var/log")), "group 47109 (fsGroup)"},
		"as runAsGroup":            {podOf("ns", group(47100), hostPID), "group 47100 (runAsGroup)"},
		"the group of the logs, by nodeapi": {pod: podOf("agents", labelled("nodeapi"), user(47108), groups(47109),
			mounts("/var/log"))},
		"the group of the logs, by a prober": {podOf("agents", labelled("prober"), groups(47109), mounts("/var/log")),
			"group 47109"},
		"root and others of the host": {pod: podOf("ns", user(47099), containerUser(0), groups(47110),
			mounts("/tmp"), hostNetwork)},
	} {
		v := h.Admit(t.Context(), &Attributes{Pod: test.pod})
		if v.Admitted() != (test.want == "") || !strings.Contains(v.Message, test.want) ||
			!v.Admitted() && v.Reason != ReasonHelperForbidden {
			t.Errorf("%s: %q, %q; want %q", name, v.Reason, v.Message, test.want)
		}
	}
	none := Helpers{Folders: h.Folders}
	if v := none.Admit(t.Context(),
		&Attributes{Pod: podOf("", labelled("prober"), mounts("/run/microlet"))}); !strings.Contains(v.Message,
		"no pod may") {
		t.Errorf("with no namespace of helpers: %q, want a rejection", v.Message)
	}
}

func TestHelpersOfEphemeralContainers(t *testing.T) {
	h := Helpers{Namespace: "agents"}
	helper := labelled("prober")
	for _, test := range []struct {
		name     string
		pod      *v1.Pod
		uid      int64
		admitted bool
	}{
		{"a user with the host", podOf("ns", mounts("/tmp")), 47104, false},
		{"a user with the host's processes", podOf("ns", hostPID), 47104, false},
		{"another user", podOf("ns", mounts("/tmp")), 1000, true},
		{"a user with the host's network", podOf("ns", hostNetwork), 47104, false},
		{"a user alone", podOf("ns"), 47104, false},
		{"a helper", podOf("agents", helper, mounts("/tmp")), 47104, true},
		{"without the label", podOf("agents", mounts("/tmp")), 47104, false},
	} {
		v := h.AdmitEphemeral(test.pod,
			&v1.Container{Name: "debug", SecurityContext: &v1.SecurityContext{RunAsUser: &test.uid}})
		if v.Admitted() != test.admitted ||
			!v.Admitted() &&
				(v.Reason != ReasonHelperForbidden ||
					!strings.Contains(v.Message, `container "debug" runs as user 47104`)) {
			t.Errorf("%s: %q, %q", test.name, v.Reason, v.Message)
		}
		if v := h.AdmitEphemeral(test.pod, &v1.Container{Name: "debug"}); !v.Admitted() {
			t.Errorf("%s, without a user: %q", test.name, v.Message)
		}
	}
}

// What an image brings is judged when its container is created.
func TestHelpersOfImages(t *testing.T) {
	h := Helpers{Namespace: "agents"}
	c := &v1.Container{Name: "c"}
	for _, test := range []struct {
		name        string
		pod         *v1.Pod
		uid         int64
		gids        []int64
		image, user bool // admitted by each
	}{
		{"an image's user with the host", podOf("ns", mounts("/run")), 47104, []int64{0}, false, false},
		{"an image's user alone", podOf("ns"), 47104, []int64{47100}, false, false},
		{"an image's group alone", podOf("ns"), 1000, []int64{47100}, true, false},
		{"an image's user with the host's processes", podOf("ns", hostPID), 47108, nil, false, false},
		{"an image's user with the host's network", podOf("ns", hostNetwork), 47103, nil, false, false},
		{"an image's user with the host's /dev/shm", podOf("ns", hostIPC), 47103, nil, false, false},
		{"an image's group with the host's /dev/shm", podOf("ns", hostIPC), 1000, []int64{47100}, true, false},
		{"an image's group with the host's network", podOf("ns", hostNetwork), 1000, []int64{47100}, true, false},
		{"an image's group", podOf("ns", mounts("/run")), 1000, []int64{1000, 47100}, true, false},
		{"an image's user that the pod replaces", podOf("ns", user(1000), mounts("/run")), 47104, nil, true, false},
		{"a helper's image", podOf("agents", labelled("prober"), mounts("/run/microlet")), 47104, []int64{47100}, true, true},
		{"a helper's image of another role", podOf("agents", labelled("prober"), mounts("/run/microlet")), 47108, nil, false,
			false},
		{"root", podOf("ns", mounts("/run")), 0, []int64{0, 10}, true, true},
	} {
		image, user := h.AdmitImage(test.pod, c, &test.uid), h.AdmitUser(test.pod, c, test.uid, test.gids)
		if image.Admitted() != test.image || user.Admitted() != test.user {
			t.Errorf("%s: by the image %q, by the runtime %q", test.name, image.Message, user.Message)
		}
		for _, v := range []Result{image, user} {
			if !v.Admitted() && !strings.Contains(v.Message, `container "c"`) {
				t.Errorf("%s: the message names no container: %s", test.name, v.Message)
			}
		}
	}
	if v := h.AdmitImage(podOf("ns", mounts("/run")), c, nil); !v.Admitted() {
		t.Errorf("an image's user by name: %s", v.Message)
	}
}

func TestFoldersOf(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if have, want := FoldersOf(link+"/"), []string{link, dir}; !slices.Equal(have, want) {
		t.Errorf("folders of %s: %q, want %q", link, have, want)
	}
	if target, err := filepath.EvalSymlinks("/var/run"); err == nil && target == "/run" {
		if have, want := FoldersOf("/run/nowhere"), []string{"/run/nowhere", "/var/run/nowhere"}; !slices.Equal(have,
			want) {
			t.Errorf("folders of /run/nowhere: %q, want %q", have, want)
		}
	}
}
