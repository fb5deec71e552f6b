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
	p := podWith(repeating("v", 60))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := m.Check(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("60 files of one key of 1 MiB took %d MiB", took>>20)
	}
}

// TestWhatFilesOfVolumesTake: a pod names more than its volumes may take.
func TestWhatFilesOfVolumesTake(t *testing.T) {
	mode, limited := int32(0o644), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Mi")}
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
		"projected":                  {[]v1.Volume{repeating("v", 65)}, nil, "with 65 files"},
		"projected, all it may take": {[]v1.Volume{repeating("v", 64)}, nil, ""},
		"configMap":                  {[]v1.Volume{configMap(65)}, nil, "with 65 files"},
		"configMap, one path":        {[]v1.Volume{configMap(64)}, func(p *v1.Pod) { again(p, 64) }, ""},
		"secret":                     {[]v1.Volume{secret(65)}, nil, "with 65 files"},
		"downwardAPI":                {[]v1.Volume{downward}, annotated, "with 322 files"},
		"two volumes":                {[]v1.Volume{repeating("v", 40), repeating("w", 40)}, nil, "files"},
		"in memory":                  {[]v1.Volume{repeating("v", 17)}, limited, "with 17 files"},
		"in memory, as limited":      {[]v1.Volume{repeating("v", 16)}, limited, ""},
		"on disk":                    {[]v1.Volume{configMap(17)}, limited, ""},
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

func again(p *v1.Pod, times int) {
	source := p.Spec.Volumes[0].ConfigMap
	source.Items = append(source.Items, items(times)...)
}

func annotated(p *v1.Pod) { p.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)} }
