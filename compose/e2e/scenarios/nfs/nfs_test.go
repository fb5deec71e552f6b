//go:build machine

package nfs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/proto/role"
)

// TestNFS: pods write and read an export, by a volume of their own and by a claim. A restart of podsync touches none of
// them, and their end touches no file.
func TestNFS(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	_, dir := e.users()
	w := e.Witness(users...)
	e.KillDuringStart("meanwhile", role.Podsync)
	w.Untouched()
	e.Signal(t, syscall.SIGKILL, role.Podsync)
	e.WaitHealthy(t, scene.Patience)
	e.EndContainer("own")
	e.Wait(scene.Patience, "a container that starts again", e.Restarted("own", 1))
	e.end(users...)
	e.clean()
	for path, want := range wanted {
		if text, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(text) != want {
			t.Errorf("after the end of the pods, %s has %q, %v", path, text, err)
		}
	}
}

// TestNFSTwins: under the kubelet and under microlet, the same exports are mounted at the same places with the same
// options.
func TestNFSTwins(t *testing.T) {
	var mounts [2][]string
	for i, agent := range []rig.Agent{rig.AgentKubelet, rig.AgentMicrolet} {
		t.Run(string(agent), func(t *testing.T) {
			scene.Shared.SwitchTo(t, agent)
			e := newExports(t)
			mounts[i], _ = e.users()
			e.end(users...)
			e.clean()
		})
	}
	if len(mounts[0]) != len(users) || !slices.Equal(mounts[0], mounts[1]) {
		t.Errorf("under the kubelet:\n%s\nunder microlet:\n%s", strings.Join(mounts[0], "\n"), strings.Join(mounts[1], "\n"))
	}
	t.Logf("under both:\n%s", strings.Join(mounts[0], "\n"))
}

// users are the pods that use an export.
var users = []string{"own", "reader", "claimed"}

// wanted is what they leave in it.
var wanted = map[string]string{"made": "own\n", "sub/made": "own\n", "claimed": "claimed\n", "given": "given\n"}

// users has pods use an export until their scripts have come to their ends, and returns what is mounted for them, and
// the folder that the server has.
func (e *exports) users() (mounts []string, dir string) {
	e.T.Helper()
	source, dir := e.folder("shared")
	if err := os.WriteFile(filepath.Join(dir, "given"), []byte(wanted["given"]), 0o644); err != nil {
		e.T.Fatal(err)
	}
	const ready = "; touch /tmp/done; "
	own := withExport(scene.ScriptPod("own", `set -e; grep -q given /data/given; echo own >/data/new
mv /data/new /data/made; echo own >/sub/made; cmp /sub/made /data/sub/made`+ready+scene.Forever),
		source)
	main := &own.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/sub", SubPath: "sub"})
	only := *source
	only.ReadOnly = true
	reader := withExport(scene.ScriptPod("reader",
		`set -e; grep -q given /data/given; ! touch /data/forbidden`+ready+scene.Forever), &only)
	e.claim("claim", source, "nfsvers=4.1", "hard", "timeo=50", "noatime")
	claimed := scene.WithClaims(scene.ScriptPod("claimed", `set -e; echo claimed >/claim/claimed`+ready+scene.Forever),
		"claim")
	pods := []*corev1.Pod{own, reader, claimed}
	for _, p := range pods {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 100,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/done"}}}}
		// One after the other: the kernel has one connection for all mounts of an export, and the first sets its timeout.
		e.CreatePods(p)
		e.WaitReady(scene.Patience, p.Name)
	}
	for path, want := range wanted {
		if text, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(text) != want {
			e.T.Errorf("the server has %q in %s, %v", text, path, err)
		}
	}
	return e.mountsOf(users...), dir
}

// client is the part of a mount's options that a node's address is in.
var client = regexp.MustCompile(`,(clientaddr|addr)=[^,]*`)

// mountsOf are the mounts of pods by their volumes, with the pods' names for their UIDs.
func (e *exports) mountsOf(names ...string) (found []string) {
	e.T.Helper()
	v := e.Record.View()
	for _, line := range e.mounted() {
		for _, name := range names {
			dir := filepath.Join(e.RootDir(), "pods", string(v.Pod(e.Namespace, name).UID)) + "/"
			if rest, ok := strings.CutPrefix(line, dir); ok && !strings.Contains(line, "/volume-subpaths/") {
				line = fmt.Sprintf("%s: %s", name, client.ReplaceAllString(rest, ""))
				found = append(found, strings.ReplaceAll(line, e.Namespace+"-", ""))
			}
		}
	}
	slices.Sort(found)
	return found
}

// TestNFSPathThatIsNotThere: the Event says which server has no such path. The pod runs as soon as it has.
func TestNFSPathThatIsNotThere(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	e := newExports(t)
	source, dir := e.folder("late")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	e.CreatePods(withExport(scene.PausePod("early"), source))
	e.Wait(scene.Patience, "word of the path", e.says("early", `MountVolume.SetUp failed for volume "data"`,
		exportOf(source), "No such file or directory"))
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	e.WaitReady(scene.Patience, "early")
	e.end("early")
	e.clean()
}
