package criconfig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// TestAFileThatIsNamedManyTimes is not read without an end.
func TestAFileThatIsNamedManyTimes(t *testing.T) {
	b, dir, p := builder(t), t.TempDir(), plainPod()
	if err := os.WriteFile(filepath.Join(dir, "env"), bytes.Repeat([]byte("#\n"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, v1.EnvVar{
			Name: fmt.Sprint("V", i), ValueFrom: &v1.EnvVarSource{
				FileKeyRef: &v1.FileKeySelector{VolumeName: "token", Path: "env", Key: "A", Optional: ptr.To(true)},
			},
		})
	}
	_, err := b.Container(t.Context(), p, &p.Spec.Containers[0],
		ContainerInput{Volumes: map[string]volumes.Mounted{"token": {HostPath: dir}}})
	if err == nil || !strings.Contains(err.Error(), "have more than 67108864 bytes together") {
		t.Errorf("a file of 2 MiB is named a hundred times: %v", err)
	}
}

func TestMountsOfPaths(t *testing.T) {
	b := builder(t)
	b.Node.RecursiveReadOnly = func(p *v1.Pod) bool { return p.Name == "web" }
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "env"), []byte("FROM='file'\nOTHER='x'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := plainPod()
	c := &p.Spec.Containers[0]
	ref := func(key string, optional bool) *v1.EnvVarSource {
		return &v1.EnvVarSource{
			FileKeyRef: &v1.FileKeySelector{VolumeName: "token", Path: "env", Key: key, Optional: &optional},
		}
	}
	c.Env = []v1.EnvVar{{Name: "A", ValueFrom: ref("FROM", false)}, {Name: "NONE", ValueFrom: ref("MISSING", true)}}
	c.VolumeMounts = []v1.VolumeMount{
		{Name: "token", MountPath: "/whole"},
		{Name: "token", MountPath: "/sub", SubPath: "a/b"},
		{Name: "token", MountPath: "/expr", SubPathExpr: "$(A)/$$(A)"},
		{Name: "token", MountPath: "/ro", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)},
		{Name: "token", MountPath: "/maybe", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible)},
		{Name: "image", MountPath: "/image"},
		{Name: "image", MountPath: "/in-image", SubPathExpr: "$(A)/b"},
	}
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	config, err := b.Container(t.Context(), p, c,
		ContainerInput{
			Volumes:      map[string]volumes.Mounted{"token": {HostPath: dir}, "image": {ReadOnly: true}},
			ImageVolumes: map[string]*runtimeapi.ImageSpec{"image": {Image: "sha256:1"}},
		})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range config.Mounts[:len(c.VolumeMounts)] {
		if image := m.GetImage().GetImage(); image != "" {
			got = append(got, fmt.Sprintf("%s %s %s %s %v", m.ContainerPath, m.HostPath, image, m.ImageSubPath, m.Readonly))
			continue
		}
		got = append(got, fmt.Sprintf("%s %s %v", m.ContainerPath, m.HostPath, m.RecursiveReadOnly))
	}
	bound := "/bound/0b5c-1/token/main/"
	want := []string{
		"/whole " + dir + " false", "/sub " + bound + "1" + dir + "/a/b false",
		"/expr " + bound + "2" + dir + "/file/$(A) false",
		"/ro " + dir + " true", "/maybe " + dir + " true",
		"/image  sha256:1  true", "/in-image  sha256:1 file/b true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if config.Envs[0].Key != "A" || string(config.Envs[0].Value) != "file" ||
		slices.ContainsFunc(config.Envs, func(e *runtimeapi.KeyValue) bool { return e.Key == "NONE" }) {
		t.Errorf("variables %v", config.Envs)
	}
}

func TestLogs(t *testing.T) {
	b := builder(t)
	p := plainPod()
	c := &p.Spec.Containers[0]
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	if err := b.LinkLogs(p, c, 0, "id"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(b.Node.ContainerLogsDir); err == nil {
		t.Error("a link to no log")
	}
	dir := filepath.Join(PodLogDir(b.Node.PodLogsDir, "ns", "web", "0b5c-1"), "main")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "3.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.LinkLogs(p, c, 3, "id"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.Readlink(filepath.Join(b.Node.ContainerLogsDir, "web_ns_main-id.log")); err != nil ||
		got != filepath.Join(dir, "3.log") {
		t.Errorf("%q, %v", got, err)
	}
	if got := LogLink("/d", "ns", strings.Repeat("p", 253), "c", "id"); len(filepath.Base(got)) != 255 ||
		!strings.HasSuffix(got, ".log") {
		t.Errorf("%d characters", len(filepath.Base(got)))
	}
}

func TestFilesStay(t *testing.T) {
	b := builder(t)
	p := plainPod()
	c := &p.Spec.Containers[0]
	if err := b.Prepare(p); err != nil {
		t.Fatal(err)
	}
	in := ContainerInput{
		ImageUID: ptr.To[int64](0),
		PodIPs:   []string{"10.1.0.2"},
		Volumes:  map[string]volumes.Mounted{"token": {HostPath: "/v"}},
	}
	hosts := filepath.Join(b.Node.PodDir(p.UID), "etc-hosts")
	start := func() os.FileInfo {
		config, err := b.Container(t.Context(), p, c, in)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(config.Mounts); n != 3 {
			t.Fatalf("%d mounts, want 3", n)
		}
		info, err := os.Stat(config.Mounts[2].HostPath)
		if err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("termination log: %v, %v", info, err)
		}
		info, err = os.Stat(hosts)
		if err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("hosts: %v, %v", info, err)
		}
		return info
	}
	first := start()
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(hosts, old, old); err != nil {
		t.Fatal(err)
	}
	if again := start(); !again.ModTime().Equal(old) || !os.SameFile(first, again) {
		t.Error("a hosts file that says what it should was written again")
	}
	in.PodIPs = []string{"10.1.0.9"}
	if changed := start(); changed.ModTime().Equal(old) || !os.SameFile(first, changed) {
		t.Error("a new address must go into the same file, which containers have mounted")
	}
	logs, err := os.ReadDir(filepath.Join(b.Node.PodDir(p.UID), "containers", "main"))
	if err != nil || len(logs) != 3 {
		t.Errorf("%d termination logs for 3 starts, %v", len(logs), err)
	}
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "token", MountPath: "/etc/hosts"})
	config, err := b.Container(t.Context(), p, c, in)
	if err != nil || len(config.Mounts) != 3 || config.Mounts[1].HostPath != "/v" {
		t.Errorf("a container's own /etc/hosts is mounted over: %v, %v", config, err)
	}
}

func TestUIDIsNoPath(t *testing.T) {
	b := builder(t)
	for _, uid := range []string{"", "..", "../x", "a/b"} {
		p := plainPod()
		p.UID = types.UID(uid)
		if err := b.Prepare(p); err == nil {
			t.Errorf("uid %q was taken for a folder", uid)
		}
	}
}

func TestHostsFileThatAContainerMadeLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc-hosts")
	if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 256<<20)); err != nil {
		t.Fatal(err)
	}
	want := "127.0.0.1\tlocalhost\n"
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if err := writeInPlace(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	goruntime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("a file of %d bytes took %d bytes of memory", len(want), took)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNothingButAFileIsWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc-hosts")
	notregular.Each(t, path, func(t *testing.T) {
		if err := writeInPlace(path, nil, 0o644); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}
