package preemption

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testPod requests as "100m" and "100Mi" say; one with limits equal to its requests is Guaranteed.
func testPod(name, cpu, memory string, limited bool) *v1.Pod {
	list := v1.ResourceList{}
	if cpu != "" {
		list[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[v1.ResourceMemory] = resource.MustParse(memory)
	}
	c := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Requests: list}}
	if limited {
		c.Resources.Limits = list
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{c}}}
}

func withPriority(p *v1.Pod, priority int32) *v1.Pod {
	p.Spec.Priority = &priority
	return p
}

const critical = 2_000_000_000

func TestVictims(t *testing.T) {
	var (
		bestEffort     = testPod("best-effort", "", "", false)
		burstable      = testPod("burstable", "100m", "100Mi", false)
		burstableLarge = testPod("burstable-large", "300m", "300Mi", false)
		guaranteed     = testPod("guaranteed", "100m", "100Mi", true)
		guaranteedBig  = testPod("guaranteed-big", "300m", "300Mi", true)
		protected      = withPriority(testPod("protected", "500m", "500Mi", true), critical)
		mib            = func(n int64) int64 { return n << 20 }
	)
	for _, test := range []struct {
		name  string
		by    int32
		pods  []*v1.Pod
		needs []Need
		want  []string
	}{
		{"a place is freed by the pod of the worst class", critical, []*v1.Pod{guaranteed, burstable, bestEffort},
			[]Need{{v1.ResourcePods, 1}}, []string{"best-effort"}},
		{"no pod goes that frees nothing", critical, []*v1.Pod{bestEffort, burstable, guaranteed},
			[]Need{{v1.ResourceCPU, 50}}, []string{"burstable"}},
		{"the nearest of a class goes", critical, []*v1.Pod{burstable, burstableLarge}, []Need{{v1.ResourceCPU, 250}},
			[]string{"burstable-large"}},
		{"of those that suffice the smaller", critical, []*v1.Pod{burstableLarge, burstable}, []Need{{v1.ResourceCPU, 90}},
			[]string{"burstable"}},
		{"guaranteed ones only for what the others cannot give", critical,
			[]*v1.Pod{bestEffort, burstable, burstableLarge, guaranteed, guaranteedBig}, []Need{{v1.ResourceMemory, mib(450)}},
			[]string{"burstable-large", "burstable", "guaranteed"}},
		{"one is spared whom a guaranteed one makes up for", critical, []*v1.Pod{burstable, guaranteedBig},
			[]Need{{v1.ResourceMemory, mib(350)}}, []string{"burstable", "guaranteed-big"}},
		{"two needs at once", critical, []*v1.Pod{burstable, burstableLarge},
			[]Need{{v1.ResourceCPU, 300}, {v1.ResourceMemory, mib(300)}}, []string{"burstable-large"}},
		{"a critical one yields to a more critical one", critical + 1000, []*v1.Pod{protected}, []Need{{v1.ResourceCPU, 400}},
			[]string{"protected"}},
		{"no need, no victim", critical, []*v1.Pod{burstable}, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			victims, err := Victims(withPriority(testPod("critical", "1", "1Gi", true), test.by), test.pods, test.needs)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, v := range victims {
				names = append(names, v.Name)
			}
			if d := cmp.Diff(test.want, names); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestVictimsThatAreNotEnough(t *testing.T) {
	preemptor := withPriority(testPod("critical", "1", "1Gi", true), critical)
	protected := withPriority(testPod("protected", "500m", "500Mi", true), critical)
	_, err := Victims(preemptor, []*v1.Pod{protected, testPod("burstable", "100m", "", false)},
		[]Need{{v1.ResourceCPU, 400}})
	const want = "no set of running pods found to reclaim resources: [(res: cpu, q: 300), ]"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want …%s", err, want)
	}
}

func TestOrdinaryPodsPreemptByPriorityAlone(t *testing.T) {
	ordinary := withPriority(testPod("ordinary", "1", "", false), 10)
	for _, test := range []struct {
		victim *v1.Pod
		can    bool
	}{
		{withPriority(testPod("lower", "1", "", false), 9), true},
		{withPriority(testPod("equal", "1", "", false), 10), false},
		{testPod("unknown", "1", "", false), false},
	} {
		_, err := Victims(ordinary, []*v1.Pod{test.victim}, []Need{{v1.ResourceCPU, 1}})
		if (err == nil) != test.can {
			t.Errorf("%s: %v", test.victim.Name, err)
		}
	}
}

func TestOverheadIsFreedWithARequest(t *testing.T) {
	p := testPod("p", "100m", "", false)
	p.Spec.Overhead = v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("50m"),
		v1.ResourceMemory: resource.MustParse("10Mi"),
	}
	c := newCandidate(p)
	if cpu, memory := c.amount(v1.ResourceCPU), c.amount(v1.ResourceMemory); cpu != 150 || memory != 0 {
		t.Errorf("cpu %d, memory %d", cpu, memory)
	}
}
