package metrics

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
)

func registered(driver string) bool { return driver == "d.example" }

func TestALifeOfVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		m := New(registry, registered)
		counts := func(want string) {
			t.Helper()
			text := "# HELP volume_manager_total_volumes Number of volumes in Volume Manager\n" +
				"# TYPE volume_manager_total_volumes gauge\n" + want
			if want == "" {
				text = ""
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "volume_manager_total_volumes"); err != nil {
				t.Error(err)
			}
		}
		m.Want("u", "files", false)
		m.Want("u", "block", true)
		counts(`volume_manager_total_volumes{plugin_name="N/A",state="desired_state_of_world"} 2` + "\n")
		time.Sleep(time.Second)
		began := time.Now()
		time.Sleep(time.Second)
		m.SetUp("u", "files", "", began, errors.New("no claim"))
		m.SetUp("u", "files", m.CSI("d.example"), began, errors.New("no"))
		m.SetUp("u", "files", m.CSI("d.example"), began, nil)
		m.SetUp("u", "block", "kubernetes.io/local-volume", began, nil)
		counts(`volume_manager_total_volumes{plugin_name="kubernetes.io/csi:d.example",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/csi:d.example",state="desired_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/local-volume",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/local-volume",state="desired_state_of_world"} 1
`)
		failed := m.Leave("u")
		time.Sleep(time.Second)
		failed(errors.New("busy"))
		counts(`volume_manager_total_volumes{plugin_name="kubernetes.io/csi:d.example",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="kubernetes.io/local-volume",state="actual_state_of_world"} 1
`)
		m.Leave("u")(nil)
		counts("")
		sums := map[string]float64{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, metric := range f.GetMetric() {
				name := f.GetName()
				for _, l := range metric.GetLabel() {
					name += " " + l.GetValue()
				}
				sums[name] = metric.GetHistogram().GetSampleSum()
			}
		}
		const operation = "storage_operation_duration_seconds false "
		want := map[string]float64{
			operation + "volume_mount fail-unknown kubernetes.io/csi:d.example":               1,
			operation + "volume_mount success kubernetes.io/csi:d.example":                    1,
			operation + "map_volume success kubernetes.io/local-volume":                       1,
			operation + "volume_unmount fail-unknown kubernetes.io/csi:d.example":             1,
			operation + "volume_unmount success kubernetes.io/csi:d.example":                  0,
			operation + "unmap_volume fail-unknown kubernetes.io/local-volume":                1,
			operation + "unmap_volume success kubernetes.io/local-volume":                     0,
			"volume_operation_total_seconds overall_volume_mount kubernetes.io/csi:d.example": 2,
		}
		for name, sum := range want {
			if got, ok := sums[name]; !ok || got != sum {
				t.Errorf("%s: %v, %t, want %v", name, got, ok, sum)
			}
		}
		if len(sums) != len(want) {
			t.Errorf("measured: %v", sums)
		}
	})
}

func TestAPodCannotMakeLabels(t *testing.T) {
	m := New(nil, registered)
	if got := m.CSI("anything"); got != "kubernetes.io/csi" {
		t.Errorf("a driver that is not registered is %s", got)
	}
	m.Has("u", "v", "p") // which no pod wants yet
	m.Leave("u")(nil)
	if len(m.pods) != 0 {
		t.Errorf("pods: %v", m.pods)
	}
}

func TestPluginsOfPersistentVolumes(t *testing.T) {
	m := New(nil, registered)
	for want, source := range map[string]v1.PersistentVolumeSource{
		"kubernetes.io/csi:d.example": {CSI: &v1.CSIPersistentVolumeSource{Driver: "d.example"}},
		"kubernetes.io/local-volume":  {Local: &v1.LocalVolumeSource{}},
		"kubernetes.io/nfs":           {NFS: &v1.NFSVolumeSource{}},
		"kubernetes.io/host-path":     {HostPath: &v1.HostPathVolumeSource{}},
		"N/A":                         {},
	} {
		pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: source}}
		if got := m.PersistentVolume(pv); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
