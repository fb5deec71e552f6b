package twin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func facts(t *testing.T, uid, ip string, v any) Facts {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}},
	}
	n := newNormaliser(p)
	parsed, err := tree(v)
	if err != nil {
		t.Fatal(err)
	}
	f := Facts{}
	n.flatten("x", parsed, f)
	return f
}

func TestWhatIsRandomIsNoDifference(t *testing.T) {
	pod := func(uid, ip, random, when, took string) Facts {
		return facts(t, uid, ip, map[string]any{
			"path": "/pods/" + uid + "/volumes/kube-api-access-" + random, "cgroup": "pod" + uid, "ip": ip,
			"startedAt": when, "message": "pulled in " + took + " (" + took + " including waiting)",
			"log":  "/pods/" + uid + "/containers/main/0a1b2c3" + random[:1],
			"list": []any{map[string]any{"type": "Ready", "lastTransitionTime": when, "status": "True"}},
		})
	}
	a := pod("11111111-2222-3333-4444-555555555555", "10.1.0.7", "abcde", "2026-01-02T03:04:05Z", "1.5s")
	b := pod("99999999-2222-3333-4444-555555555555", "10.1.0.70", "fghij", "2027-01-02T03:04:05.123456Z", "317ms")
	b["x.log"] = a["x.log"] // j is no hexadecimal digit
	if diff := cmp.Diff([]Difference(nil), Compare(a, b)); diff != "" {
		t.Errorf("differences (-want +got):\n%s\n%v", diff, a)
	}
}

func TestWhatDiffersIsSeen(t *testing.T) {
	base := func() map[string]any {
		return map[string]any{
			"process": map[string]any{"env": []any{"A=1", "B=2"}},
			"mounts": []any{map[string]any{"destination": "/a", "source": "/s"},
				map[string]any{"destination": "/b"}},
			"restartCount": 1, "flag": true,
		}
	}
	if got := Compare(facts(t, "11111111-2222-3333-4444-555555555555", "10.1.0.7", base()),
		facts(t, "11111111-2222-3333-4444-555555555555", "10.1.0.7", base())); got != nil {
		t.Fatalf("the same differs: %v", got)
	}
	tests := map[string]struct {
		change func(m map[string]any)
		want   []Difference
	}{
		"a value": {func(m map[string]any) { m["restartCount"] = 2 }, []Difference{{"x.restartCount", "1",
			"2"}}},
		"one is missing":   {func(m map[string]any) { delete(m, "flag") }, []Difference{{"x.flag", "true", ""}}},
		"the order of env": {func(m map[string]any) { m["process"] = map[string]any{"env": []any{"B=2", "A=1"}} }, nil},
		"a variable's value": {func(m map[string]any) { m["process"] = map[string]any{"env": []any{"A=1", "B=3"}} },
			[]Difference{{"x.process.env[B]", "B=2", "B=3"}}},
		"the order of mounts": {func(m map[string]any) {
			mounts := m["mounts"].([]any)
			m["mounts"] = []any{mounts[1], mounts[0]}
		}, []Difference{{"x.mounts.order", "/a /b", "/b /a"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := base()
			test.change(m)
			if diff := cmp.Diff(test.want,
				Compare(facts(t, "11111111-2222-3333-4444-555555555555", "10.1.0.7", base()),
					facts(t, "11111111-2222-3333-4444-555555555555", "10.1.0.7", m))); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnexplained(t *testing.T) {
	memory, cpu := "status.resources.limits.memory", "status.resources.requests.cpu"
	const unhealthy = "event[Warning kubelet Unhealthy spec.containers"
	all := []Difference{
		{memory, "9007199254740988Ki", ""},
		{memory, "9007199254740988Ki", "50M"},
		{memory, "48828Ki", "50M"},
		{memory, "48824Ki", "50M"},
		{memory, "50M", "48828Ki"},
		{cpu, "", "5m"},
		{cpu, "5m", ""},
		{cpu, "6m", "5m"},
		{"status.containerStatuses[main].resources.requests.cpu", "", "5m"},
		{unhealthy + `{main} Startup probe failed: command timed out: "true" timed out after <duration>]`, "", "sent"},
		{unhealthy + `{main} Readiness probe failed: Get "http://<pod IP>/": context deadline exceeded]`, "sent", ""},
		{unhealthy + `{main} Startup probe failed: command failed]`, "", "sent"},
		{"status.containerStatuses[main].restartCount", "0", "1"},
	}
	want := []Difference{all[3], all[4], all[6], all[7], all[8], all[11], all[12]}
	if diff := cmp.Diff(want, Unexplained(all)); diff != "" {
		t.Errorf("unexplained (- want, + is):\n%s", diff)
	}
}
