package pods

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/compose/e2e/scene"
	"github.com/microlet/microlet/proto/role"
)

// TestUserNamespaces: pods with hostUsers: false have users of their own, which no two of them share. podsync is killed
// meanwhile.
func TestUserNamespaces(t *testing.T) {
	scene.Shared.UseMicrolet(t)
	s := scene.New(t)
	userNamespaces(s, func() { s.KillDuringStart("users-meanwhile", role.Podsync) })
}

// ids is what the file in a pod's folder says.
type ids struct {
	UIDs []idMapping `json:"uidMappings"`
	GIDs []idMapping `json:"gidMappings"`
}

type idMapping struct {
	Host   uint32 `json:"hostId"`
	Own    uint32 `json:"containerId"`
	Length uint32 `json:"length"`
}

// userNamespaces runs pods with users of their own. Between a container's two lives it lets something happen to the
// node agent.
func userNamespaces(s *scene.Scene, happen func()) {
	s.T.Helper()
	secret(s, "secret", "hidden")
	s.CreatePods(namespaced("root", 0), namespaced("user", 1000))
	s.WaitReady(scene.Patience, "root", "user")
	begins := map[string]uint32{}
	for name, uid := range map[string]uint32{"root": 0, "user": 1000} {
		begins[name] = checkUsers(s, name, uid, 0)
	}

	happen()
	s.CreatePods(namespaced("later", 0))
	s.EndContainer("root")
	s.Wait(scene.Patience, "the container's next start", s.Restarted("root", 1))
	s.WaitReady(scene.Patience, "later")
	if again := checkUsers(s, "root", 0, 1); again != begins["root"] {
		s.T.Errorf("the container that was started again has the IDs from %d on, and had them from %d on", again,
			begins["root"])
	}
	begins["later"] = checkUsers(s, "later", 0, 0)
	seen := map[uint32]string{}
	for name, first := range begins {
		if other := seen[first]; other != "" {
			s.T.Errorf("%s and %s both have the IDs from %d on", name, other, first)
		}
		seen[first] = name
	}

	var pods []*corev1.Pod
	for name := range begins {
		pods = append(pods, s.Record.View().Pod(s.Namespace, name))
	}
	s.DeletePods("root", "user", "later")
	s.Wait(scene.Patience, "the pods' end", s.AreGone("root", "user", "later"))
	s.LeavesNothing(pods)
}

// namespaced is a pod with users of its own, whose container runs as this one.
func namespaced(name string, uid int64) *corev1.Pod {
	const show = `stat -L -c 'owner: %n %u:%g %a' /secret/deep/password /etc/hosts
echo secret: $(cat /secret/deep/password)
echo x >/empty/by-the-pod && stat -c 'made: %u:%g' /empty/by-the-pod
echo done >/dev/termination-log && echo message: written
echo ==end; `
	p := scene.ScriptPod(name, show+scene.Forever)
	mode := int32(0o400)
	p.Spec.HostUsers = new(false)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &uid, FSGroup: new(int64(4242))}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret",
			Items: []corev1.KeyToPath{{Key: "password", Path: "deep/password", Mode: &mode}}}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "empty", MountPath: "/empty"}, {Name: "secret", MountPath: "/secret"},
	}
	return p
}

// checkUsers judges a pod of namespaced, and returns its first ID.
func checkUsers(s *scene.Scene, name string, uid uint32, restart int) uint32 {
	s.T.Helper()
	p := s.Record.View().Pod(s.Namespace, name)
	sees(s, p, restart, scene.Patience, "==end")
	for _, want := range []string{"owner: /secret/deep/password 0:4242 440", "owner: /etc/hosts 0:0 644", "secret: hidden",
		fmt.Sprintf("made: %d:4242", uid), "message: written"} {
		sees(s, p, restart, 0, want)
	}

	dir := filepath.Join(s.RootDir(), "pods", string(p.UID))
	text, err := os.ReadFile(filepath.Join(dir, "userns"))
	if err != nil {
		s.T.Fatal(err)
	}
	var said ids
	if err := json.Unmarshal(text, &said); err != nil || len(said.UIDs) != 1 || len(said.GIDs) != 1 ||
		said.UIDs[0] != said.GIDs[0] || said.UIDs[0].Own != 0 || said.UIDs[0].Host < 65536 || said.UIDs[0].Length != 65536 {
		s.T.Fatalf("%s: file %s: %v", name, text, err)
	}
	first := said.UIDs[0].Host

	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := s.ContainerPID(id)
	if err != nil {
		s.T.Fatal(err)
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	for _, file := range []string{"uid_map", "gid_map"} {
		got, err := os.ReadFile(filepath.Join(proc, file))
		if want := fmt.Sprintf("0 %d 65536", first); err != nil || strings.Join(strings.Fields(string(got)), " ") != want {
			s.T.Errorf("%s: %s is %q, want %q: %v", name, file, got, want, err)
		}
	}
	// The process has an ID of the pod's range on the node, and its files keep the one that the container sees.
	owner(s, proc, first+uid)
	owner(s, filepath.Join(dir, "volumes/kubernetes.io~empty-dir/empty/by-the-pod"), uid)
	owner(s, filepath.Join(dir, "volumes/kubernetes.io~secret/secret/deep/password"), 0)
	owner(s, filepath.Join(dir, "etc-hosts"), 0)
	return first
}

// owner judges which user owns a file of the node.
func owner(s *scene.Scene, path string, want uint32) {
	s.T.Helper()
	info, err := os.Stat(path)
	if err != nil {
		s.T.Error(err)
		return
	}
	if got := info.Sys().(*syscall.Stat_t).Uid; got != want {
		s.T.Errorf("%s is of user %d, want %d", path, got, want)
	}
}
