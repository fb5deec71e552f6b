package volumes

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// repeating is a volume that has a key of a ConfigMap so many times.
func repeating(name string, times int) v1.Volume {
	mode := int32(0o644)
	projected := &v1.ProjectedVolumeSource{DefaultMode: &mode}
	for i := range times {
		projected.Sources = append(projected.Sources, v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{
			LocalObjectReference: v1.LocalObjectReference{Name: "big"},
			Items:                []v1.KeyToPath{{Key: "k", Path: fmt.Sprint(i)}},
		}})
	}
	return volumeOf(name, v1.VolumeSource{Projected: projected})
}

// items name the key of an object so many times.
func items(times int) (all []v1.KeyToPath) {
	for i := range times {
		all = append(all, v1.KeyToPath{Key: "k", Path: fmt.Sprint(i)})
	}
	return all
}

func big() *api {
	text := strings.Repeat("x", 1<<20)
	return &api{
		configMaps: map[string]*v1.ConfigMap{"big": {Data: map[string]string{"k": text}}},
		secrets:    map[string]*v1.Secret{"big": {Data: map[string][]byte{"k": []byte(text)}}},
	}
}

// TestFilesShareWhatTheyAreMadeOf: files of one key cost no copy each.
func TestFilesShareWhatTheyAreMadeOf(t *testing.T) {
	m, _ := manager(t, big())
	p := podWith(repeating("v", 16))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := m.Check(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("16 files of one key of 1 MiB took %d MiB", took>>20)
	}
}

// TestWhatFilesOfVolumesTake: a pod names more than its volumes may take.
func TestWhatFilesOfVolumesTake(t *testing.T) {
	mode := int32(0o644)
	limited := func(memory string) func(p *v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}
		}
	}
	configMap := func(times int) v1.Volume {
		return volumeOf("v", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "big"}, DefaultMode: &mode, Items: items(times)}})
	}
	secret := func(times int) v1.Volume {
		return volumeOf("v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{
			SecretName: "big", DefaultMode: &mode, Items: items(times)}})
	}
	downward := volumeOf("v", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: &mode}})
	for i := range 600 {
		downward.DownwardAPI.Items = append(downward.DownwardAPI.Items, v1.DownwardAPIVolumeFile{
			Path: fmt.Sprint(i), FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.annotations"}})
	}
	for name, c := range map[string]struct {
		volumes []v1.Volume
		change  func(*v1.Pod)
		want    string
	}{
		"projected":                  {[]v1.Volume{repeating("v", 65)}, limited("1Gi"), "with 65 files"},
		"projected, all it may take": {[]v1.Volume{repeating("v", 64)}, limited("1Gi"), ""},
		"configMap":                  {[]v1.Volume{configMap(65)}, nil, "with 65 files"},
		"configMap, one path":        {[]v1.Volume{configMap(64)}, func(p *v1.Pod) { again(p, 64) }, ""},
		"secret":                     {[]v1.Volume{secret(65)}, limited("1Gi"), "with 65 files"},
		"downwardAPI":                {[]v1.Volume{downward}, annotated, "with 81 files"},
		"two volumes":                {[]v1.Volume{repeating("v", 40), repeating("w", 40)}, limited("1Gi"), "files"},
		"in memory":                  {[]v1.Volume{repeating("v", 9)}, limited("8Mi"), "with 9 files"},
		"in memory, as limited":      {[]v1.Volume{repeating("v", 8)}, limited("8Mi"), ""},
		"on disk":                    {[]v1.Volume{configMap(17)}, limited("8Mi"), ""},
		"no limit": {[]v1.Volume{secret(17)}, nil, "with 17 files, those of the pod in memory take 17825792 then, and may " +
			"take 16777216 in a pod without a memory limit"},
		"no limit, two volumes": {[]v1.Volume{repeating("v", 10), repeating("w", 10)}, nil, "without a memory limit"},
		"no limit, as much":     {[]v1.Volume{secret(16)}, nil, ""},
		"no limit, on disk":     {[]v1.Volume{configMap(64)}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := manager(t, big())
			p := podWith(c.volumes...)
			if c.change != nil {
				c.change(p)
			}
			if err := m.Check(t.Context(), p); c.want == "" && err != nil ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if c.want == "" {
				return
			}
			if _, err := m.Mount(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := m.Unmount(t.Context(), p.UID); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(m.podDir(p.UID)); !os.IsNotExist(err) {
				t.Error(err)
			}
		})
	}
}

// TestFoldersOfVolumesAreCounted: a path of two bytes a folder names two thousand of them, each of which takes memory
// or a block.
func TestFoldersOfVolumesAreCounted(t *testing.T) {
	mode, deep := int32(0o644), strings.Repeat("d/", 1000)
	files := volumeOf("v", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "big"}, DefaultMode: &mode}})
	mountPoints := podWith(volumeOf("v", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: &mode}}),
		volumeOf("w", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	mounts := []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	for i := range 17 {
		files.ConfigMap.Items = append(files.ConfigMap.Items, v1.KeyToPath{Key: "k", Path: fmt.Sprint(i, "/", deep, "f")})
		mounts = append(mounts, v1.VolumeMount{Name: "w", MountPath: fmt.Sprint("/v/", i, "/", deep)})
	}
	mountPoints.Spec.Containers[0].VolumeMounts = mounts
	small := &api{configMaps: map[string]*v1.ConfigMap{"big": {Data: map[string]string{"k": "x"}}}}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"of files": {podWith(files), "with 17 files"}, "of mount points": {mountPoints, "mount fewer there"},
	} {
		m, _ := manager(t, small)
		if err := m.Check(t.Context(), c.pod); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestAPodMayHaveSoManyMounts: the kernel has room for a number of them, which all pods share.
func TestAPodMayHaveSoManyMounts(t *testing.T) {
	memory := v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}
	volumes := func(n int) *v1.Pod {
		p := podWith()
		for i := range n {
			p.Spec.Volumes = append(p.Spec.Volumes, volumeOf(fmt.Sprint("v", i), memory))
		}
		return p
	}
	paths := func(n int) *v1.Pod {
		p := volumes(1)
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "d"})
		for i := range n {
			c := &p.Spec.Containers[i%2]
			c.VolumeMounts = append(c.VolumeMounts,
				v1.VolumeMount{Name: "v0", MountPath: fmt.Sprint("/", i), SubPath: fmt.Sprint(i)})
		}
		return p
	}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"volumes, all that it may have": {volumes(512), ""},
		"volumes":                       {volumes(513), "the pod has 513 volumes, and mounts 0 paths in them"},
		"paths, all that it may have":   {paths(511), ""},
		"paths":                         {paths(512), "the pod has 1 volumes, and mounts 512 paths in them"},
	} {
		m, mounts := manager(t, &api{})
		_, err := m.Mount(t.Context(), c.pod)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.want != "" && (m.Check(t.Context(), c.pod) == nil || len(mounts.MountPoints) > 0) {
			t.Errorf("%s: it is found right, or %d are mounted", name, len(mounts.MountPoints))
		}
	}
}

// TestSubPathsOfManyFolders: root makes the folders of a subPath, which take memory that the pod is not charged for.
func TestSubPathsOfManyFolders(t *testing.T) {
	volume := t.TempDir()
	if err := makeSubPath("", volume, strings.Repeat("a/", 63)+"a"); err != nil {
		t.Error(err)
	}
	if err := makeSubPath("", volume, strings.Repeat("b/", 64)+"b"); err == nil {
		t.Error("65 folders were made")
	}
	if err := makeSubPath("", volume, strings.Repeat("a/", 64)+"b/c"); err != nil {
		t.Errorf("most of them are there: %v", err)
	}
	entries, err := os.ReadDir(volume)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

func again(p *v1.Pod, times int) {
	source := p.Spec.Volumes[0].ConfigMap
	source.Items = append(source.Items, items(times)...)
}

func annotated(p *v1.Pod) { p.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)} }
