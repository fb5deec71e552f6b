package selinuxlabel

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/selinuxlabel/labeltest"
)

const (
	labelA = "system_u:object_r:container_file_t:s0:c1,c2"
	labelB = "system_u:object_r:container_file_t:s0:c3,c4"
)

func level(l string) *v1.SELinuxOptions { return &v1.SELinuxOptions{Level: l} }

var (
	optionsA = level("s0:c1,c2")
	optionsB = level("s0:c3,c4")
)

// pod has the options itself, and containers with options of their own that mount the volume "data".
func pod(uid types.UID, own *v1.SELinuxOptions, containers ...*v1.SELinuxOptions) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: own}
	for _, o := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{
			VolumeMounts:    []v1.VolumeMount{{Name: "data"}},
			SecurityContext: &v1.SecurityContext{SELinuxOptions: o},
		})
	}
	return p
}

func recursive(p *v1.Pod) *v1.Pod {
	p.Spec.SecurityContext.SELinuxChangePolicy = new(v1.SELinuxChangePolicyRecursive)
	return p
}

// volume is that of a driver that mounts with labels.
func volume(modes ...v1.PersistentVolumeAccessMode) *Volume {
	return &Volume{Name: "data", Driver: "d.example", Mountable: true, PV: &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{AccessModes: modes},
	}}
}

func TestWhatAPodWants(t *testing.T) {
	sidecar := pod("u", optionsA, nil)
	sidecar.Spec.InitContainers = []v1.Container{{
		VolumeMounts:    []v1.VolumeMount{{Name: "data"}},
		SecurityContext: &v1.SecurityContext{SELinuxOptions: optionsB},
	}}
	debugged := pod("u", optionsA, nil)
	debugged.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		VolumeMounts:    []v1.VolumeMount{{Name: "data"}},
		SecurityContext: &v1.SecurityContext{SELinuxOptions: optionsB},
	}}}
	elsewhere := pod("u", optionsA, nil)
	elsewhere.Spec.Containers = append(elsewhere.Spec.Containers, v1.Container{
		VolumeMounts: []v1.VolumeMount{{Name: "other"}}, SecurityContext: &v1.SecurityContext{SELinuxOptions: optionsB},
	})
	bare := pod("u", nil, nil)
	bare.Spec.SecurityContext, bare.Spec.Containers[0].SecurityContext = nil, nil
	mountOption := pod("u", optionsA, nil)
	mountOption.Spec.SecurityContext.SELinuxChangePolicy = new(v1.SELinuxChangePolicyMountOption)
	both := "multiple SELinux labels found: " + labelA + "," + labelB
	for name, c := range map[string]struct {
		pod         *v1.Pod
		unmountable bool
		want, err   string
	}{
		"the pod's options":               {pod: pod("u", optionsA, nil), want: labelA},
		"the container's go first":        {pod: pod("u", optionsB, optionsA), want: labelA},
		"two containers agree":            {pod: pod("u", nil, optionsA, level("s0:c1,c2")), want: labelA},
		"one of two has options":          {pod: pod("u", nil, optionsA, nil), want: labelA},
		"two containers disagree":         {pod: pod("u", nil, optionsB, optionsA), err: both},
		"a sidecar disagrees":             {pod: sidecar, err: both},
		"an ephemeral container, too":     {pod: debugged, err: both},
		"one without the volume does not": {pod: elsewhere, want: labelA},
		"without any options":             {pod: pod("u", nil, nil)},
		"no security context":             {pod: bare},
		"no label has quotes": {
			pod: pod("u", level(`s0:c1"`), nil), err: "failed to construct SELinux label",
		},
		"no label has spaces": {
			pod: pod("u", &v1.SELinuxOptions{User: "a b", Level: "s0"}, nil), err: "failed to construct SELinux label",
		},
		"the runtime draws the level":  {pod: pod("u", &v1.SELinuxOptions{User: "system_u"}, nil)},
		"MountOption":                  {pod: mountOption, want: labelA},
		"Recursive":                    {pod: recursive(pod("u", optionsA, nil))},
		"the driver mounts without":    {pod: pod("u", optionsA, nil), unmountable: true},
		"it may disagree nevertheless": {pod: pod("u", nil, optionsB, optionsA), unmountable: true, err: both},
		"options without a label": {
			pod: pod("u", &v1.SELinuxOptions{User: "unknown_u", Level: "s0"}, nil),
			err: "failed to construct SELinux label from context ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := volume(v1.ReadWriteOnce)
			v.Mountable = !c.unmountable
			got, err := wanted(labeltest.Host{}, c.pod, v)
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// nodeWith has SELinux.
func nodeWith(t *testing.T, anyAccess bool) (*Labels, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	return New(Options{Host: labeltest.Host{}, AnyAccess: anyAccess, Metrics: r}), r
}

// counted are the metrics that are not 0, by their names without what is common to all, and their labels.
func counted(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "volume_manager_selinux_")
			for _, l := range m.Label {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			found[name] = m.GetGauge().GetValue()
		}
	}
	return found
}

func wantCounted(t *testing.T, r *prometheus.Registry, want map[string]float64) {
	t.Helper()
	if got := counted(t, r); !maps.Equal(got, want) {
		t.Errorf("metrics: %v, want %v", got, want)
	}
}

func take(t *testing.T, l *Labels, p *v1.Pod, v *Volume, want Label) {
	t.Helper()
	if got, err := l.Take(p, v); err != nil || got != want {
		t.Errorf("%s: %+v, %v, want %+v", p.UID, got, err, want)
	}
}

func refused(t *testing.T, l *Labels, p *v1.Pod, v *Volume, want string) {
	t.Helper()
	if got, err := l.Take(p, v); err == nil || err.Error() != want || got != (Label{}) {
		t.Errorf("%s: %+v, %v, want %s", p.UID, got, err, want)
	}
}

const conflictAB = `conflicting SELinux labels of volume pv: "` + labelA + `" and "` + labelB + `"`

func TestPodsThatShareAVolume(t *testing.T) {
	l, r := nodeWith(t, true)
	v := volume(v1.ReadWriteMany)
	take(t, l, pod("a1", optionsA, nil), v, Label{labelA, labelA})
	take(t, l, pod("a2", optionsA, nil), v, Label{labelA, labelA})
	refused(t, l, pod("b", optionsB, nil), v, conflictAB)
	refused(t, l, recursive(pod("a3", optionsA, nil)), v,
		`conflicting SELinux labels of volume pv: "`+labelA+`" and ""`)
	wantCounted(t, r, map[string]float64{
		"volumes_admitted_total access_mode=RWX volume_plugin=kubernetes.io/csi/d.example":               1,
		"volume_context_mismatch_errors_total access_mode=RWX volume_plugin=kubernetes.io/csi/d.example": 2,
	})
	// The volume is the pods' as long as one of them is there.
	l.Forget("a1")
	refused(t, l, pod("b", optionsB, nil), v, conflictAB)
	l.Forget("a2")
	take(t, l, pod("b", optionsB, nil), v, Label{labelB, labelB})
}

// A driver that mounts without labels mixes nothing up: the runtime labels the files.
func TestAnotherDriversVolumeIsShared(t *testing.T) {
	l, r := nodeWith(t, true)
	v := volume(v1.ReadWriteOnce)
	v.Mountable = false
	take(t, l, pod("a", optionsA, nil), v, Label{})
	take(t, l, pod("b", optionsB, nil), v, Label{})
	wantCounted(t, r, map[string]float64{})
}

// A pod keeps its label, whatever an ephemeral container wants later.
func TestAPodKeepsItsLabel(t *testing.T) {
	l, r := nodeWith(t, true)
	v := volume(v1.ReadWriteOncePod)
	take(t, l, pod("a", optionsA, nil), v, Label{labelA, labelA})
	take(t, l, pod("a", optionsA, nil, optionsB), v, Label{labelA, labelA})
	wantCounted(t, r, map[string]float64{
		"volumes_admitted_total access_mode=RWOP volume_plugin=kubernetes.io/csi/d.example": 1,
	})
}

// Without the gate, a volume that several pods may have gets no label. What will be an error with it is counted.
func TestReadWriteOncePodOnly(t *testing.T) {
	l, r := nodeWith(t, false)
	take(t, l, pod("a", optionsA, nil), volume(v1.ReadWriteOnce), Label{"", labelA})
	take(t, l, pod("b", optionsB, nil), volume(v1.ReadWriteOnce), Label{"", labelA})
	take(t, l, pod("c", nil, optionsA, optionsB), volume(v1.ReadWriteOnce), Label{"", labelA})
	take(t, l, pod("d", &v1.SELinuxOptions{User: "unknown_u", Level: "s0"}, nil), volume(v1.ReadWriteOnce),
		Label{"", labelA})
	alone := volume(v1.ReadWriteOncePod)
	alone.PV.Name = "alone"
	take(t, l, pod("a", optionsA, nil), alone, Label{labelA, labelA})
	mixed := volume(v1.ReadWriteOncePod, v1.ReadOnlyMany)
	mixed.PV.Name = "mixed"
	take(t, l, pod("a", optionsA, nil), mixed, Label{"", labelA})
	const plugin = " volume_plugin=kubernetes.io/csi/d.example"
	wantCounted(t, r, map[string]float64{
		"volumes_admitted_total access_mode=RWO" + plugin:  1,
		"volumes_admitted_total access_mode=RWOP" + plugin: 1,
		"volumes_admitted_total access_mode=ROX" + plugin:  1,
		// Options of which no label can be made are none, and differ, too.
		"volume_context_mismatch_warnings_total access_mode=RWO" + plugin: 2,
		"pod_context_mismatch_warnings_total access_mode=RWO":             1,
		"container_warnings_total access_mode=RWO":                        1,
	})
}

func TestErrorsOfOnePod(t *testing.T) {
	l, r := nodeWith(t, true)
	refused(t, l, pod("a", nil, optionsA, optionsB), volume(v1.ReadOnlyMany),
		"multiple SELinux labels found: "+labelA+","+labelB)
	bad := &v1.SELinuxOptions{User: "unknown_u", Level: "s0"}
	if _, err := l.Take(pod("a", bad, nil), volume(v1.ReadOnlyMany)); err == nil {
		t.Error("a label was made of nothing")
	}
	wantCounted(t, r, map[string]float64{
		"pod_context_mismatch_errors_total access_mode=ROX": 1,
		"container_errors_total access_mode=ROX":            1,
	})
	// No pod has the volume yet.
	take(t, l, pod("b", optionsB, nil), volume(v1.ReadOnlyMany), Label{labelB, labelB})
}

// A volume of the pod itself is never mounted with a label.
func TestInline(t *testing.T) {
	l, r := nodeWith(t, true)
	take(t, l, pod("a", optionsA, nil), &Volume{Name: "data", Driver: "d.example", Mountable: true}, Label{"", labelA})
	take(t, l, pod("a", nil, optionsA, optionsB), &Volume{Name: "data"}, Label{})
	wantCounted(t, r, map[string]float64{
		"volumes_admitted_total access_mode=inline volume_plugin=kubernetes.io/csi/d.example": 1,
		"pod_context_mismatch_warnings_total access_mode=inline":                              1,
	})
}

// What an earlier process has mounted counts from the first.
func TestAfterARestart(t *testing.T) {
	l, _ := nodeWith(t, true)
	l.Has("a", "pv", Label{labelA, labelA})
	refused(t, l, pod("b", optionsB, nil), volume(v1.ReadWriteOnce), conflictAB)
	l.Forget("a")
	take(t, l, pod("b", optionsB, nil), volume(v1.ReadWriteOnce), Label{labelB, labelB})
}

type off struct{ labeltest.Host }

func (off) Enabled() bool { return false }

func TestANodeWithoutSELinux(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, l := range []*Labels{nil, New(Options{Host: off{}, AnyAccess: true, Metrics: registry})} {
		if l.Enabled() {
			t.Error("enabled")
		}
		l.Has("a", "pv", Label{labelA, labelA})
		take(t, l, pod("b", nil, optionsB, optionsA), volume(v1.ReadWriteOnce), Label{})
		take(t, l, pod("c", optionsA, nil), volume(v1.ReadWriteOnce), Label{})
		l.Forget("b")
	}
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d metrics, %v", n, err)
	}
}

func TestWhatTheLibraryIsGiven(t *testing.T) {
	o := &v1.SELinuxOptions{User: "u", Role: "r", Type: "t", Level: "s0:c1,c2"}
	if got := arguments(o); !slices.Equal(got, []string{"user:u", "role:r", "type:t", "level:s0:c1,c2"}) {
		t.Errorf("%q", got)
	}
	if got := arguments(&v1.SELinuxOptions{Level: "s0"}); !slices.Equal(got, []string{"level:s0"}) {
		t.Errorf("%q", got)
	}
}

// TestThisHost holds the machine's answers together: without SELinux there is no label.
func TestThisHost(t *testing.T) {
	label, err := ThisHost().FileLabel(optionsA)
	if err != nil || (label != "") != ThisHost().Enabled() {
		t.Errorf("%q, %v, enabled: %t", label, err, ThisHost().Enabled())
	}
}

func TestAccessMode(t *testing.T) {
	for want, modes := range map[string][]v1.PersistentVolumeAccessMode{
		"RWX":  {v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany},
		"ROX":  {v1.ReadWriteOnce, v1.ReadOnlyMany},
		"RWO":  {v1.ReadWriteOncePod, v1.ReadWriteOnce},
		"RWOP": {v1.ReadWriteOncePod},
		"":     nil,
	} {
		if got := accessMode(volume(modes...).PV); got != want {
			t.Errorf("%v: %q, want %q", modes, got, want)
		}
	}
	if got := accessMode(nil); got != "inline" {
		t.Errorf("no PersistentVolume: %q", got)
	}
}
