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

func TestHelpers(t *testing.T) {
	h := Helpers{Namespace: "agents", Folders: []string{"/run/microlet", "/var/run/microlet"}}
	mounts := func(paths ...string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
		for _, path := range paths {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}})
		}
		return p
	}
	as := func(uid int64, p *v1.Pod) *v1.Pod {
		p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &uid}
		return p
	}
	containerAs := func(uid int64, p *v1.Pod) *v1.Pod {
		p.Spec.InitContainers = []v1.Container{{Name: "i", SecurityContext: &v1.SecurityContext{RunAsUser: &uid}}}
		return p
	}
	in := func(namespace string, p *v1.Pod) *v1.Pod {
		p.Namespace = namespace
		return p
	}
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want string // part of the message; empty admits
	}{
		"nothing":                     {pod: mounts()},
		"another folder":              {pod: mounts("/run/microlet-rig", "/run", "/")},
		"the folder":                  {mounts("/run/microlet"), `volume "host" mounts /run/microlet of`},
		"the folder, oddly spelled":   {mounts("/tmp", "//run/x/../microlet/"), "own folder /run/microlet"},
		"below it":                    {mounts("/run/microlet/sock"), "--helper-namespace"},
		"its other name":              {mounts("/var/run/microlet/nkeys"), `only pods of the namespace "agents" may`},
		"the folder, by a helper":     {pod: in("agents", mounts("/run/microlet"))},
		"a user alone":                {pod: as(47104, mounts())},
		"a user with the host":        {as(47104, mounts("/tmp")), "the pod runs as user 47104, which is the node agent's service prober"},
		"a user, by a helper":         {pod: in("agents", as(47104, mounts("/run/microlet")))},
		"a container's user":          {containerAs(47108, mounts("/tmp")), `container "i" runs as user 47108, which is the node agent's service nodeapi`},
		"root and others of the host": {pod: containerAs(0, as(47100, mounts("/tmp")))},
	} {
		v := h.Admit(t.Context(), &Attributes{Pod: test.pod})
		if v.Admitted() != (test.want == "") || !strings.Contains(v.Message, test.want) || !v.Admitted() && v.Reason != ReasonHelperForbidden {
			t.Errorf("%s: %q, %q; want %q", name, v.Reason, v.Message, test.want)
		}
	}
}

func TestHelpersOfEphemeralContainers(t *testing.T) {
	h := Helpers{Namespace: "agents"}
	for _, test := range []struct {
		namespace string
		hostPath  bool
		uid       int64
		admitted  bool
	}{
		{"ns", true, 47104, false}, {"ns", true, 1000, true}, {"ns", false, 47104, true}, {"agents", true, 47104, true},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace}, Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "scratch"}}}}
		if test.hostPath {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/tmp"}}})
		}
		v := h.AdmitEphemeral(p, &v1.Container{Name: "debug", SecurityContext: &v1.SecurityContext{RunAsUser: &test.uid}})
		if v.Admitted() != test.admitted || !v.Admitted() && (v.Reason != ReasonHelperForbidden || !strings.Contains(v.Message, `container "debug" runs as user 47104`)) {
			t.Errorf("%+v: %q, %q", test, v.Reason, v.Message)
		}
		if v := h.AdmitEphemeral(p, &v1.Container{Name: "debug"}); !v.Admitted() {
			t.Errorf("%+v, without a user: %q", test, v.Message)
		}
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
		if have, want := FoldersOf("/run/nowhere"), []string{"/run/nowhere", "/var/run/nowhere"}; !slices.Equal(have, want) {
			t.Errorf("folders of /run/nowhere: %q, want %q", have, want)
		}
	}
}
