package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mount "k8s.io/mount-utils"
)

// realManager mounts for real, below a folder that goes with the test.
func realManager(t *testing.T, a *api, allocatable string) *Manager {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	m := NewManager(ManagerOptions{
		RootDir: t.TempDir(),
		Objects: a,
		Tokens:  a,
		Mounter: mount.New(""),
		Foreign: Operations(),
		Allocatable: func() v1.ResourceList {
			return v1.ResourceList{v1.ResourceMemory: resource.MustParse(allocatable)}
		},
	})
	t.Cleanup(func() {
		if err := m.Unmount(context.Background(), "u1"); err != nil {
			t.Error(err)
		}
	})
	return m
}

func podWith(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1", Labels: map[string]string{"a": "b"}},
		Spec:       v1.PodSpec{Volumes: volumes, Containers: []v1.Container{{Name: "c"}}},
	}
}

func volumeOf(name string, source v1.VolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: source}
}

func TestEachKindIsWhereTheKubeletHasIt(t *testing.T) {
	a := &api{
		configMaps: map[string]*v1.ConfigMap{
			"c": {Data: map[string]string{"k": "map"}, BinaryData: map[string][]byte{"bin": {0, 1}}},
		},
		secrets: map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte("secret"), "other": nil}}},
	}
	m := realManager(t, a, "100Mi")
	host, group, mode, own := t.TempDir(), int64(4242), int32(0o400), int32(0o444)
	p := podWith(
		volumeOf("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		volumeOf("mem",
			v1.VolumeSource{
				EmptyDir: &v1.EmptyDirVolumeSource{
					Medium:    v1.StorageMediumMemory,
					SizeLimit: new(resource.MustParse("8Mi")),
				},
			}),
		volumeOf("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}),
		volumeOf("cm",
			v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{
					LocalObjectReference: v1.LocalObjectReference{Name: "c"},
					DefaultMode:          &own,
				},
			}),
		volumeOf("sec", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: &mode,
			Items: []v1.KeyToPath{{Key: "k", Path: "deep/file"}, {Key: "other", Path: "other", Mode: &own}}}}),
		volumeOf("down", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: &mode,
			Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{
				FieldPath: "metadata.labels",
			}},
				{Path: "memory", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.memory",
					Divisor: resource.MustParse("1Mi")}}}}}),
	)
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	if err := m.Check(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.Existing(p); ok {
		t.Fatal("found before it was set up")
	}
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	base := m.podDir(p.UID)
	for _, want := range []struct {
		volume, folder string
		tmpfs, ro      bool
		mark           string
	}{
		{"disk", "volumes/kubernetes.io~empty-dir/disk", false, false, "disk"},
		{"mem", "volumes/kubernetes.io~empty-dir/mem", true, false, "mem"},
		{"cm", "volumes/kubernetes.io~configmap/cm", false, true, "wrapped_cm"},
		{"sec", "volumes/kubernetes.io~secret/sec", true, true, "wrapped_sec"},
		{"down", "volumes/kubernetes.io~downward-api/down", true, true, "wrapped_down"},
	} {
		got := mounted[want.volume]
		if got.HostPath != filepath.Join(base, want.folder) || got.ReadOnly != want.ro || !got.SELinuxRelabel {
			t.Errorf("%s: %+v", want.volume, got)
		}
		if isMountPoint(m.memory.mounter, got.HostPath) != want.tmpfs {
			t.Errorf("%s: mounted must be %v", want.volume, want.tmpfs)
		}
		if _, err := os.Stat(filepath.Join(base, "plugins/kubernetes.io~empty-dir", want.mark, "ready")); err != nil {
			t.Errorf("%s: %v", want.volume, err)
		}
	}
	if got := mounted["host"]; got != (Mounted{HostPath: host}) {
		t.Errorf("hostPath: %+v", got)
	}
	for path, want := range map[string]string{
		"volumes/kubernetes.io~configmap/cm/k":           "-r--r----- map", // replaced below
		"volumes/kubernetes.io~configmap/cm/bin":         "",
		"volumes/kubernetes.io~secret/sec/deep/file":     "-r--r----- secret",
		"volumes/kubernetes.io~secret/sec/other":         "-r--r--r-- ",
		"volumes/kubernetes.io~downward-api/down/labels": `-r--r----- a="b"`,
		"volumes/kubernetes.io~downward-api/down/memory": "-r--r----- 100",
		"volumes/kubernetes.io~empty-dir/disk":           "drwxrwsrwx ",
		"volumes/kubernetes.io~configmap/cm":             "drwxrwsrwx ",
	} {
		info, err := os.Stat(filepath.Join(base, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != uint32(group) {
			t.Errorf("%s belongs to group %d, want %d", path, gid, group)
		}
		got := unixMode(info.Mode()) + " "
		if !info.IsDir() {
			got += read(t, filepath.Join(base, path))
		}
		switch path {
		case "volumes/kubernetes.io~configmap/cm/k":
			want = "-r--r--r-- map"
		case "volumes/kubernetes.io~configmap/cm/bin":
			want = "-r--r--r-- \x00\x01"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(mounted["mem"].HostPath, &stat); err != nil || stat.Type != unix.TMPFS_MAGIC ||
		int64(stat.Blocks)*stat.Bsize != 8<<20 {
		t.Errorf("size of the memory volume: %d, %v", int64(stat.Blocks)*stat.Bsize, err)
	}
	if there, ok := m.Existing(p); !ok || fmt.Sprint(there) != fmt.Sprint(mounted) {
		t.Errorf("existing: %v, %v", there, ok)
	}
	// Another manager, as after a restart, finds all but the hostPath, which it looks at again.
	p.Spec.Volumes = append(p.Spec.Volumes[:2:2], p.Spec.Volumes[3:]...)
	if _, ok := NewManager(m.opts).Existing(p); !ok {
		t.Error("what was set up before a restart is not found after it")
	}
	if err := m.Unmount(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(base); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A power cut leaves files that were not synced empty, and a ConfigMap may have changed since.
func TestFilesOfAnotherBootAreComparedWithTheAPI(t *testing.T) {
	a := &api{configMaps: map[string]*v1.ConfigMap{"c": {Data: map[string]string{"k": "map", "same": "same"}}}}
	m, _ := manager(t, a)
	mode := int32(0o644)
	p := podWith(volumeOf("cm",
		v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: "c"},
				DefaultMode:          &mode,
			},
		}),
		volumeOf("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	m.opts.BootID = "first"
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(mounted["cm"].HostPath, "k")
	now := func(boot string) *Manager {
		opts := m.opts
		opts.BootID = boot
		return NewManager(opts)
	}
	if _, ok := now("first").Existing(p); !ok {
		t.Error("a restart in the same boot does not find the files")
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	second := now("second")
	if there, ok := second.Existing(p); ok {
		t.Errorf("files of the boot before pass for this one's: %v", there)
	}
	if _, err := second.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := read(t, file); got != "map" {
		t.Errorf("a container would see %q, want what the API has", got)
	}
	if there, ok := second.Existing(p); !ok || fmt.Sprint(there) != fmt.Sprint(mounted) {
		t.Errorf("after they were compared: %v, %t", there, ok)
	}
	// The kubelet's mark names no boot.
	if err := os.Truncate(string(ready(filepath.Join(m.podDir(p.UID), "plugins", emptyDirName, "wrapped_cm", "ready"))),
		0); err != nil {
		t.Fatal(err)
	}
	if _, ok := second.Existing(p); ok {
		t.Error("files of an unknown boot pass for this one's")
	}
}

func unixMode(mode fs.FileMode) string {
	text := []byte((mode & (fs.ModeDir | fs.ModePerm)).String())
	if mode&fs.ModeSetgid != 0 {
		text[6] = 's'
	}
	return string(text)
}

func TestEmptyDirKeepsWhatIsInIt(t *testing.T) {
	m := realManager(t, &api{}, "100Mi")
	p := podWith(volumeOf("v", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	mounted, err := m.Mount(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(mounted["v"].HostPath, "kept")
	if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, again := range []*Manager{m, NewManager(m.opts)} {
		if _, err := again.Mount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := again.Refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, kept); got != "x" {
		t.Fatal("the volume was made again")
	}
}

func TestTmpfsSize(t *testing.T) {
	for name, test := range map[string]struct {
		allocatable, pod, volume string
		want                     int64
	}{
		"the node's":               {"1Gi", "", "", 1 << 30},
		"the pod's":                {"1Gi", "64Mi", "", 64 << 20},
		"the volume's":             {"1Gi", "64Mi", "32Mi", 32 << 20},
		"the pod's is lower":       {"1Gi", "64Mi", "128Mi", 64 << 20},
		"the node's is lower":      {"16Mi", "64Mi", "128Mi", 16 << 20},
		"zero is none":             {"1Gi", "", "0", 1 << 30},
		"nothing is known":         {"0", "", "", 0},
		"only the volume is known": {"0", "", "32Mi", 32 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			p := podWith()
			if test.pod != "" {
				p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(test.pod)}
			}
			var volume *resource.Quantity
			if test.volume != "" {
				volume = new(resource.MustParse(test.volume))
			}
			if got := tmpfsSize(p, v1.ResourceList{v1.ResourceMemory: resource.MustParse(test.allocatable)},
				volume); got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
	p := podWith()
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
	p.Spec.InitContainers = []v1.Container{{Name: "i"}}
	if got := tmpfsSize(p, v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}, nil); got != 1<<30 {
		t.Errorf("a container without a limit leaves the pod without one, got %d", got)
	}
}

func TestHugePagesNeedARequest(t *testing.T) {
	requests := func(names ...string) *v1.Pod {
		p := podWith()
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{}
		for _, n := range names {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceName(n)] = resource.MustParse("4Mi")
		}
		return p
	}
	for _, test := range []struct {
		pod    *v1.Pod
		medium v1.StorageMedium
		want   string
	}{
		{requests("hugepages-2Mi"), "HugePages", "2Mi"},
		{requests("hugepages-2Mi", "hugepages-1Gi"), "HugePages-1Gi", "1Gi"},
		{requests("hugepages-2Mi", "hugepages-1Gi"), "HugePages", "multiple huge page sizes"},
		{requests("cpu"), "HugePages", "no resource request for huge pages"},
		{requests("hugepages-2Mi"), "HugePages-1Gi", "no resource request for huge pages"},
	} {
		size, err := pageSize(test.pod, test.medium)
		got := size.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, want %s", test.medium, got, test.want)
		}
	}
}

func TestHostPathTypes(t *testing.T) {
	m, _ := manager(t, &api{})
	dir := t.TempDir()
	file, folder, socket, missing := filepath.Join(dir, "file"), filepath.Join(dir, "folder"),
		filepath.Join(dir, "socket"), filepath.Join(dir, "missing")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(folder, 0o700),
		unix.Mknod(socket, unix.S_IFSOCK|0o600, 0)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path string
		kind v1.HostPathType
		want string
	}{
		{missing, "", ""},
		{folder, v1.HostPathDirectory, ""},
		{file, v1.HostPathFile, ""},
		{socket, v1.HostPathSocket, ""},
		{"/dev/null", v1.HostPathCharDev, ""},
		{file, v1.HostPathDirectory, "hostPath type check failed: " + file + " is not a directory, it's a File"},
		{folder, v1.HostPathFileOrCreate, "hostPath type check failed: " + folder + " is not a file, it's a Directory"},
		{"/dev/null", v1.HostPathBlockDev, "hostPath type check failed: /dev/null is not a block device, it's a CharDevice"},
		{missing, v1.HostPathSocket, "hostPath type check failed, " + missing +
			` is not a socket file, unable to determine its type: path "` + missing + `" does not exist`},
		{filepath.Join(dir, "a/b"), v1.HostPathDirectoryOrCreate, ""},
		{filepath.Join(dir, "a/b"), v1.HostPathDirectory, ""},
		{filepath.Join(dir, "a/f"), v1.HostPathFileOrCreate, ""},
		{filepath.Join(dir, "a/f"), v1.HostPathFile, ""},
		{dir + "/a/../a", v1.HostPathDirectory, "invalid HostPath `" + dir + "/a/../a`: must not contain '..'"},
		{file, "Other", "Other is an invalid volume type"},
	} {
		p := podWith(volumeOf("v",
			v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: test.path, Type: &test.kind}}))
		want := test.want
		if want != "" {
			want = `MountVolume.SetUp failed for volume "v" : ` + want
		}
		got := ""
		if _, err := m.Mount(t.Context(), p); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s %s: %q, want %q", test.kind, test.path, got, want)
		}
		m.nodes.forget(p.UID)
	}
}

func TestEveryVolumeThatFailsIsNamed(t *testing.T) {
	m, _ := manager(t, &api{})
	mode := int32(0o644)
	config := func(name string, optional bool) v1.Volume {
		return volumeOf(name, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: name}, DefaultMode: &mode, Optional: &optional}})
	}
	_, err := m.Mount(t.Context(), podWith(config("one", false), config("may", true), config("two", false)))
	all, ok := err.(interface{ Unwrap() []error })
	if !ok || len(all.Unwrap()) != 2 {
		t.Fatalf("%v", err)
	}
	for i, name := range []string{"one", "two"} {
		var failed *Error
		if !errors.As(all.Unwrap()[i], &failed) || failed.Volume != name {
			t.Errorf("%v", all.Unwrap()[i])
		}
	}
}
