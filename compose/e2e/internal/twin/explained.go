package twin

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Explanation is a difference between the kubelet and microlet that is meant.
type Explanation struct {
	path  *regexp.Regexp
	meant func(kubelet, microlet string) bool
	// Why it is meant, with where the kubelet's value comes from.
	Why string
}

// Covers reports whether it explains d, of which A is the kubelet's.
func (e *Explanation) Covers(d Difference) bool {
	return e.path.MatchString(d.Path) && e.meant(d.A, d.B)
}

// pageSize is what cgroup v1 rounds a memory limit down to.
const pageSize = 4096

// Explained are the differences that are meant. docs/pod-lifecycle.md lists them.
//
// Most are of the pod's own status.resources (KEP-5419). The kubelet takes it from the pod's cgroup if the API
// has echoed the phase Running by the time that it looks, and from the spec otherwise, so that it shows
// sometimes the one and sometimes the other (convertToAPIPodLevelResourcesStatus, where a note asks whether the
// cgroup is worth the inconsistency). microlet shows what the spec allots, always.
var Explained = []Explanation{
	{
		regexp.MustCompile(`^status\.resources\.limits\.memory$`),
		func(kubelet, _ string) bool { return kubelet == "9007199254740988Ki" },
		"9007199254740988Ki is how cgroup v1 says that there is no limit: one container has none, or an init container",
	},
	{
		regexp.MustCompile(`^status\.resources\.limits\.memory$`),
		func(kubelet, microlet string) bool {
			k, errK := resource.ParseQuantity(kubelet)
			m, errM := resource.ParseQuantity(microlet)
			return errK == nil && errM == nil && m.Value()/pageSize*pageSize == k.Value()
		},
		"the cgroup has the limit in whole pages",
	},
	{
		regexp.MustCompile(`^status\.resources\.(requests|limits)\.(cpu|memory|ephemeral-storage)$`),
		func(kubelet, microlet string) bool { return kubelet == "" && microlet != "" },
		"the cgroup of a pod that has ended is gone, and none knows of storage",
	},
	{
		regexp.MustCompile(`^event\[Warning kubelet Unhealthy \S+ (Startup|Liveness|Readiness) probe failed: ` +
			`(command timed out: |.*context deadline exceeded)`),
		func(kubelet, microlet string) bool { return kubelet == "" || microlet == "" },
		"a probe has a second, and a busy machine took longer once; what follows from it, such as a restart, is compared",
	},
}

// Unexplained returns the differences that nothing explains.
func Unexplained(all []Difference) []Difference {
	var rest []Difference
next:
	for _, d := range all {
		for i := range Explained {
			if Explained[i].Covers(d) {
				continue next
			}
		}
		rest = append(rest, d)
	}
	return rest
}

// String is the explanation on one line.
func (e *Explanation) String() string {
	return strings.Trim(e.path.String(), "^$") + ": " + e.Why
}
