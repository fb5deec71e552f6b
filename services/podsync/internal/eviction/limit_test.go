package eviction

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
)

// TestOnlyItsOwnLimitsEndAPod: podsync accepts what the caller says that the pod uses, but not what it may use.
func TestOnlyItsOwnLimitsEndAPod(t *testing.T) {
	p := newPod()
	storage := func(size string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(size)}
	}
	volume := func(name string, limit *resource.Quantity) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: limit}}}
	}
	p.Spec.Volumes = []v1.Volume{
		volume("limited", new(resource.MustParse("1Mi"))), volume("unlimited", nil),
		volume("zero", new(resource.MustParse("0"))),
		{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}},
	}
	p.Spec.Containers = []v1.Container{
		{Name: "limited", Resources: v1.ResourceRequirements{Limits: storage("2Mi")}}, {Name: "unlimited"},
	}
	none := newPod()
	none.Spec.Containers = []v1.Container{{Name: "unlimited"}}
	for name, test := range map[string]struct {
		pod     *v1.Pod
		limit   *Limit
		evicted bool
	}{
		"pressure":                     {p, nil, true},
		"a volume above its limit":     {p, &Limit{EmptyDir: "limited", UsedBytes: 1<<20 + 1}, true},
		"a volume at its limit":        {p, &Limit{EmptyDir: "limited", UsedBytes: 1 << 20}, false},
		"a volume without a limit":     {p, &Limit{EmptyDir: "unlimited", UsedBytes: 1 << 40}, false},
		"a volume with a limit of 0":   {p, &Limit{EmptyDir: "zero", UsedBytes: 1 << 40}, false},
		"a volume of another kind":     {p, &Limit{EmptyDir: "config", UsedBytes: 1 << 40}, false},
		"no such volume":               {p, &Limit{EmptyDir: "none", UsedBytes: 1 << 40}, false},
		"a container above its limit":  {p, &Limit{Container: "limited", UsedBytes: 2<<20 + 1}, true},
		"a container at its limit":     {p, &Limit{Container: "limited", UsedBytes: 2 << 20}, false},
		"a container without a limit":  {p, &Limit{Container: "unlimited", UsedBytes: 1 << 40}, false},
		"no such container":            {p, &Limit{Container: "none", UsedBytes: 1 << 40}, false},
		"the pod above its limit":      {p, &Limit{UsedBytes: 2<<20 + 1}, true},
		"the pod at its limit":         {p, &Limit{UsedBytes: 2 << 20}, false},
		"a pod without a limit":        {none, &Limit{UsedBytes: 1 << 40}, false},
		"a negative figure, of no use": {p, &Limit{UsedBytes: -1}, false},
	} {
		w, events := &workers{pod: test.pod}, record.NewFakeRecorder(10)
		e := evictor(w, events)
		r := request()
		r.Limit = test.limit
		err := e.Evict(t.Context(), r)
		if (err == nil) != test.evicted || !test.evicted && !errors.Is(err, ErrWithinLimit) ||
			(w.asked == 1) != test.evicted || (len(events.Events) == 1) != test.evicted {
			t.Errorf("%s: %v, asked %d times, %d events", name, err, w.asked, len(events.Events))
		}
		if refused := testutil.ToFloat64(e.refused.WithLabelValues(refusedLimit)); (refused == 0) != test.evicted {
			t.Errorf("%s: %g refusals counted", name, refused)
		}
	}
}
