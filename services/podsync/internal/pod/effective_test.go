package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestEffective(t *testing.T) {
	list := func(cpu, memory string) v1.ResourceList {
		l := v1.ResourceList{}
		for name, amount := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
			if amount != "" {
				l[name] = resource.MustParse(amount)
			}
		}
		return l
	}
	whole := &v1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("2", "")}
	for name, test := range map[string]struct {
		podLevel *v1.ResourceRequirements
		own      v1.ResourceList
		want     v1.ResourceList
	}{
		"no pod-level resources": {nil, list("", "1Mi"), list("", "1Mi")},
		"no limit":               {whole, nil, list("2", "")},
		"another limit":          {whole, list("", "1Mi"), list("2", "1Mi")},
		"its own limit":          {whole, list("1", "1Mi"), list("1", "1Mi")},
		"a limit of 0":           {whole, list("0", "1Mi"), list("2", "1Mi")},
	} {
		own := v1.ResourceRequirements{Requests: list("100m", ""), Limits: test.own}
		before := own.DeepCopy()
		got := Effective(test.podLevel, own)
		if diff := cmp.Diff(v1.ResourceRequirements{Requests: list("100m", ""), Limits: test.want}, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(*before, own); diff != "" {
			t.Errorf("%s: the requirements were changed: %s", name, diff)
		}
	}
}
