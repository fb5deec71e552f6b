package claims

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/summary"
)

// podsync answers with what each volume has, or an error; one that hangs does not answer.
type podsync struct {
	mu    sync.Mutex
	used  map[string]uint64
	errs  map[string]error
	hangs map[string]bool
	asked map[string]int
}

func (p *podsync) GetVolumeStats(ctx context.Context, r *podsyncv1.GetVolumeStatsRequest, _ ...grpc.CallOption) (
	*podsyncv1.GetVolumeStatsResponse, error) {
	name := r.GetPodUid() + "/" + r.GetVolume()
	p.mu.Lock()
	p.asked[name]++
	used, err, hangs := p.used[name], p.errs[name], p.hangs[name]
	p.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &podsyncv1.GetVolumeStatsResponse{CapacityBytes: 100, UsedBytes: used, AvailableBytes: 100 - used}, err
}

func (p *podsync) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// all are two pods of one claim, of which one has an inline volume, an ephemeral claim and a Secret too.
func all() map[string]*nodepods.Pod {
	shared := v1.Volume{Name: "data"}
	shared.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}
	own := v1.Volume{Name: "own"}
	own.Ephemeral = &v1.EphemeralVolumeSource{}
	inline := v1.Volume{Name: "inline"}
	inline.CSI = &v1.CSIVolumeSource{Driver: "d"}
	secret := v1.Volume{Name: "secret"}
	secret.Secret = &v1.SecretVolumeSource{}
	return map[string]*nodepods.Pod{
		"a": podWith("pod-a", shared, own, inline, secret),
		"b": podWith("pod-b", shared),
	}
}

func podWith(name string, volumes ...v1.Volume) *nodepods.Pod {
	return &nodepods.Pod{Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: v1.PodSpec{Volumes: volumes},
	}}
}

func start(t *testing.T, p *podsync, list func() map[string]*nodepods.Pod) *Claims {
	t.Helper()
	p.asked, p.errs, p.hangs = map[string]int{}, map[string]error{}, map[string]bool{}
	c := New(Options{Podsync: p, Pods: list, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	pass(within + look)
	return c
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &podsync{used: map[string]uint64{"a/data": 10, "b/data": 10, "a/own": 20, "a/inline": 30}}
		c := start(t, p, all)
		got := map[string]string{}
		for _, v := range c.Volumes("a") {
			got[v.Name] = ""
			if v.PVCRef != nil {
				got[v.Name] = v.PVCRef.Namespace + "/" + v.PVCRef.Name
			}
			if *v.CapacityBytes != 100 || *v.AvailableBytes != 100-*v.UsedBytes || v.Ephemeral || v.Time.IsZero() {
				t.Errorf("%+v", v)
			}
		}
		if want := map[string]string{"data": "ns/claim", "own": "ns/pod-a-own", "inline": ""}; !maps.Equal(got, want) {
			t.Errorf("volumes %v, want %v", got, want)
		}
		want := `# HELP kubelet_volume_stats_used_bytes [ALPHA] Number of used bytes in the volume
# TYPE kubelet_volume_stats_used_bytes gauge
kubelet_volume_stats_used_bytes{namespace="ns",persistentvolumeclaim="claim"} 10
kubelet_volume_stats_used_bytes{namespace="ns",persistentvolumeclaim="pod-a-own"} 20
`
		if err := testutil.CollectAndCompare(c, strings.NewReader(want), "kubelet_volume_stats_used_bytes"); err != nil {
			t.Error(err)
		}
		if n := testutil.CollectAndCount(c); n != 12 {
			t.Errorf("%d metrics, want six of each claim", n)
		}
		pass(10 * time.Minute)
		p.set(func() {
			if n := p.asked["a/data"]; n < 10 || n > 12 {
				t.Errorf("asked %d times in ten minutes", n)
			}
		})
	})
}

func used(c *Claims, pod, name string) int {
	all := c.Volumes(pod)
	i := slices.IndexFunc(all, func(v summary.Volume) bool { return v.Name == name })
	if i < 0 {
		return -1
	}
	return int(*all[i].UsedBytes)
}

func TestWhoDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &podsync{used: map[string]uint64{"a/data": 1, "a/own": 1, "a/inline": 1, "b/data": 1}}
		c := start(t, p, all)
		p.set(func() {
			p.errs["a/data"] = status.Error(codes.Unavailable, "podsync restarts")
			p.errs["a/own"] = status.Error(codes.NotFound, "unmounted")
			p.hangs["a/inline"] = true
			p.used["b/data"] = 2
		})
		pass(2 * time.Minute)
		for name, want := range map[string]int{"a/data": 1, "a/own": -1, "a/inline": 1, "b/data": 2} {
			pod, volume, _ := strings.Cut(name, "/")
			if got := used(c, pod, volume); got != want {
				t.Errorf("%s has %d, want %d", name, got, want)
			}
		}
		p.set(func() {
			if p.asked["a/inline"] > 2 {
				t.Errorf("a volume that hangs is asked %d times at once", p.asked["a/inline"])
			}
			clear(p.errs)
			clear(p.hangs)
			p.used["a/inline"] = 3
		})
		pass(10 * time.Minute)
		if used(c, "a", "own") != 1 || used(c, "a", "inline") != 3 {
			t.Errorf("afterwards: %d and %d", used(c, "a", "own"), used(c, "a", "inline"))
		}
	})
}

func TestPodsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		list := all()
		c := start(t, &podsync{}, func() map[string]*nodepods.Pod { mu.Lock(); defer mu.Unlock(); return maps.Clone(list) })
		if len(c.Volumes("b")) != 1 {
			t.Fatal("no figures")
		}
		mu.Lock()
		delete(list, "b")
		mu.Unlock()
		pass(look)
		if got := c.Volumes("b"); len(got) > 0 {
			t.Errorf("%v", got)
		}
	})
}

func TestNothingIsMeasuredWithANegativePeriod(t *testing.T) {
	c := New(Options{Period: -1, Pods: all, Log: slog.New(slog.DiscardHandler)})
	if err := c.Run(t.Context()); err != nil || len(c.Volumes("a")) > 0 {
		t.Errorf("%v, %v", err, c.Volumes("a"))
	}
}
