package twins

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/pod/decide"
)

// crashes is the life of a container that ends again and again.
type crashes struct {
	// Most is crashLoopBackOff.maxContainerRestartPeriod.
	Most  time.Duration
	Lives []life
}

// life is one instance.
type life struct {
	Runs time.Duration
	// Image and Memory are what the definition asks for once it has ended.
	Image, Memory string
	// Syncs are when the pod is looked at, after the end of the instance and each after the one before.
	Syncs []time.Duration
}

var _ = register(Pair[crashes, []string]{
	Name:     "backoff",
	Generate: drawCrashes,
	Upstream: kubeletBackOff,
	Ours:     ourBackOff,
	Branches: func(_ crashes, out []string) []string {
		var did []string
		for _, line := range out {
			for _, delay := range []string{"1s", "10s", "20s", "40s", "1m20s", "2m40s", "5m0s"} {
				if strings.Contains(line, "back-off "+delay+" ") {
					did = append(did, "waits "+delay)
				}
			}
			if strings.Contains(line, "starts") {
				did = append(did, "starts")
			}
		}
		return did
	},
	Wanted: []string{"starts", "waits 1s", "waits 10s", "waits 20s", "waits 40s", "waits 1m20s", "waits 2m40s",
		"waits 5m0s"},
	Differences: []Difference[crashes, []string]{
		{Name: "starts again with a definition that comes back", As: func(in crashes) (crashes, bool) {
			before, unique := "image:1", "image:1"
			any := false
			in.Lives = slices.Clone(in.Lives)
			for i := range in.Lives {
				l := &in.Lives[i]
				if l.Image != "" && l.Image != before {
					before, unique = l.Image, fmt.Sprint("image:", 10+i)
					any = true
				}
				l.Image = unique
			}
			return in, any
		}},
		{Name: "does not start again after a resize", As: func(in crashes) (crashes, bool) {
			any := false
			in.Lives = slices.Clone(in.Lives)
			for i := range in.Lives {
				any = any || in.Lives[i].Memory != ""
				in.Lives[i].Memory = ""
			}
			return in, any
		}},
	},
	Break: func(_ crashes, out *[]string) {
		for i, line := range *out {
			(*out)[i] = strings.ReplaceAll(line, "back-off 40s", "back-off 30s")
		}
	},
})

func drawCrashes(s *Source) crashes {
	in := crashes{
		Most: OneOf(s, 300*time.Second, 300*time.Second, time.Second, 4*time.Second, 15*time.Second, 60*time.Second),
	}
	for range 1 + s.Intn(9) {
		l := life{Runs: time.Duration(OneOf(s, 0, 0, 1, 3, 11, 100, 290, 301, 599, 600, 601, 700)) * time.Second}
		if s.Percent(10) {
			l.Image = OneOf(s, "image:2", "image:3")
		}
		if s.Percent(5) {
			l.Memory = OneOf(s, "1Gi", "2Gi")
		}
		for range s.Intn(5) {
			l.Syncs = append(l.Syncs, time.Duration(OneOf(s, 0, 1, 2, 9, 10, 19, 40, 80, 150, 299))*time.Second)
		}
		in.Lives = append(in.Lives, l)
	}
	return in
}

// syncing looks at the pod: the container waits, or is started.
type syncing func(at time.Time, p *v1.Pod, st *pod.State) (waits bool, message string, until time.Time)

// live lets the container live.
func (in crashes) live(sync syncing) []string {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}}
	p.Spec.RestartPolicy = v1.RestartPolicyAlways
	p.Spec.Containers = []v1.Container{{Name: "c", Image: "image:1"}}
	c := &p.Spec.Containers[0]
	st := &pod.State{UID: p.UID, Sandboxes: []pod.Sandbox{{ID: "box", Ready: true, IPs: []string{"10.0.0.2"}}}}
	at := begin
	var out []string
	for i, l := range in.Lives {
		instance := pod.Container{
			ID: fmt.Sprint("c-", i), Name: "c", SandboxID: "box", ExitCode: 1,
			State:   runtimeapi.ContainerState_CONTAINER_EXITED,
			Created: at, Started: at, Finished: at.Add(l.Runs), RestartCount: int32(i), Hash: kubeHash(c.Name, c.Image),
		}
		st.Containers = append([]pod.Container{instance}, st.Containers...)
		at = instance.Finished
		if l.Image != "" {
			c.Image = l.Image
		}
		if l.Memory != "" {
			c.Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(l.Memory)}
		}
		for _, pause := range append(slices.Clone(l.Syncs), 301*time.Second) {
			at = at.Add(pause)
			waits, message, until := sync(at, p, st)
			if !waits {
				out = append(out, fmt.Sprintf("%s starts", at.Sub(begin)))
				break
			}
			out = append(out, fmt.Sprintf("%s waits until %s: %s", at.Sub(begin), until.Sub(begin), message))
		}
	}
	return out
}

func kubeletBackOff(in crashes) []string {
	clock := clocktesting.NewFakeClock(begin)
	longest, initial := kubelet.TwinCrashLoopBackOff(in.Most)
	b := flowcontrol.NewFakeBackOff(initial, longest, clock)
	b.HasExpiredFunc = func(event, last time.Time, _ time.Duration) bool { return event.Sub(last) > 600*time.Second }
	t := kuberuntime.NewTwin(nil, nil, nil)
	return in.live(func(at time.Time, p *v1.Pod, st *pod.State) (bool, string, time.Time) {
		clock.SetTime(at)
		b.GC() // as its housekeeping does every two seconds
		return t.BackOff(context.Background(), p, &p.Spec.Containers[0], kubeStatus(p, st), b)
	})
}

// TestBackOffExpiresAsInTheKubelet looks whether the kubelet still sets when a back-off expires as kubeletBackOff does,
// which no function of its own returns.
func TestBackOffExpiresAsInTheKubelet(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(os.Getenv("MICROLET_TWINS_UPSTREAM"), "pkg/kubelet/kubelet.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(source), "klet.crashLoopBackOff.HasExpiredFunc = ") ||
		!strings.Contains(string(source), "return eventTime.Sub(lastUpdate) > 600*time.Second") {
		t.Error("the kubelet sets crashLoopBackOff.HasExpiredFunc in another way")
	}
}

func ourBackOff(in crashes) []string {
	b := decide.NewBackoff(in.Most)
	return in.live(func(at time.Time, p *v1.Pod, st *pod.State) (bool, string, time.Time) {
		a := decide.Decide(decide.Input{Pod: p, State: st, Now: at, Backoff: b, Hash: criconfig.ContainerHash})
		if len(a.Wait) > 0 {
			return true, a.Wait[0].Message, a.Wait[0].Until
		}
		b.Started(a.Start[0], at)
		return false, "", time.Time{}
	})
}
