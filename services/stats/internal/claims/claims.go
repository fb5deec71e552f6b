// Package claims reports how full the volumes of claims and of CSI drivers are.
//
// podsync alone may call the drivers, and knows where volumes are mounted, so it is asked for each of them. That is
// done with volumeStatsAggPeriod, each volume at its own time. A driver or file system that hangs costs the figures of
// its own volumes: they stay as they are until it answers.
package claims

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/summary"
)

const (
	// look is how often the pods are looked at for new volumes.
	look = 5 * time.Second
	// within spreads the first questions after a start.
	within = 10 * time.Second
	// patience bounds a question: podsync gives a driver two minutes a call.
	patience = 5 * time.Minute
)

// Client is podsync's service, as far as volumes are concerned.
type Client interface {
	GetVolumeStats(ctx context.Context, in *podsyncv1.GetVolumeStatsRequest,
		opts ...grpc.CallOption) (*podsyncv1.GetVolumeStatsResponse, error)
}

var _ Client = (podsyncv1.VolumeStatsServiceClient)(nil)

// Options of Claims. All fields are required.
type Options struct {
	// Period is volumeStatsAggPeriod. If it is negative, nothing is measured.
	Period  time.Duration
	Podsync Client
	// Pods returns the node's pods by their UID.
	Pods func() map[string]*nodepods.Pod
	Log  *slog.Logger
}

// Claims has the figures. Its methods may be called by several goroutines.
type Claims struct {
	o Options

	mu    sync.Mutex
	known map[key]*volume
}

// key is a volume of a pod.
type key struct{ pod, name string }

type volume struct {
	claim *statsapi.PVCReference
	due   time.Time
	// asked: a question is under way.
	asked bool
	// figures are nil while there are none.
	figures *statsapi.FsStats
}

var _ prometheus.Collector = (*Claims)(nil)

// New returns Claims without figures.
func New(o Options) *Claims {
	if o.Period == 0 {
		o.Period = time.Minute
	}
	return &Claims{o: o, known: map[key]*volume{}}
}

// Run asks until ctx ends; that is no error.
func (c *Claims) Run(ctx context.Context) error {
	if c.o.Period < 0 {
		return nil
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		c.follow(c.o.Pods())
		for _, k := range c.begin(time.Now()) {
			asking.Go(func() { c.ask(ctx, k) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// follow takes up the volumes of new pods, and drops those of pods that are gone.
func (c *Claims) follow(all map[string]*nodepods.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.known {
		if all[k.pod] == nil {
			delete(c.known, k)
		}
	}
	for uid, p := range all {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			k := key{uid, v.Name}
			if c.known[k] == nil && (v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil) {
				c.known[k] = &volume{claim: claimOf(p, v), due: time.Now().Add(rand.N(within))}
			}
		}
	}
}

// claimOf is nil for an inline volume.
func claimOf(p *nodepods.Pod, v *v1.Volume) *statsapi.PVCReference {
	switch {
	case v.PersistentVolumeClaim != nil:
		return &statsapi.PVCReference{Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
	case v.Ephemeral != nil:
		return &statsapi.PVCReference{Namespace: p.Namespace, Name: p.Name + "-" + v.Name}
	}
	return nil
}

// begin returns the volumes to ask for now.
func (c *Claims) begin(now time.Time) (due []key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range c.known {
		if !v.asked && !now.Before(v.due) {
			v.asked, v.due = true, now.Add(c.o.Period)
			due = append(due, k)
		}
	}
	return due
}

func (c *Claims) ask(ctx context.Context, k key) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := c.o.Podsync.GetVolumeStats(ctx, &podsyncv1.GetVolumeStatsRequest{PodUid: k.pod, Volume: k.name})
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.known[k]
	if v == nil {
		return
	}
	v.asked = false
	switch status.Code(err) {
	case codes.OK:
		v.figures = figures(answer)
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded: // no answer has come: what is known holds
	default:
		v.figures = nil
		c.o.Log.Debug("a volume has no figures", logkey.PodUID, k.pod, "volume", k.name, logkey.Err, err)
	}
}

func figures(a *podsyncv1.GetVolumeStatsResponse) *statsapi.FsStats {
	return &statsapi.FsStats{
		Time: metav1.Now(), AvailableBytes: new(a.GetAvailableBytes()), CapacityBytes: new(a.GetCapacityBytes()),
		UsedBytes: new(a.GetUsedBytes()), InodesFree: new(a.GetInodesFree()), Inodes: new(a.GetInodes()),
		InodesUsed: new(a.GetInodesUsed()),
	}
}

// Volumes returns those of a pod that have figures.
func (c *Claims) Volumes(pod string) (all []summary.Volume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range c.known {
		if k.pod == pod && v.figures != nil {
			all = append(all, summary.Volume{
				VolumeStats: statsapi.VolumeStats{Name: k.name, PVCRef: v.claim, FsStats: *v.figures},
			})
		}
	}
	return all
}

// Describe implements prometheus.Collector.
func (c *Claims) Describe(out chan<- *prometheus.Desc) {
	for _, g := range newGauges() {
		g.vector.Describe(out)
	}
}

// Collect implements prometheus.Collector: the newest figures of each claim. Several pods may have its volume.
func (c *Claims) Collect(out chan<- prometheus.Metric) {
	newest := c.newest()
	for _, g := range newGauges() {
		for claim, f := range newest {
			g.vector.WithLabelValues(claim.Namespace, claim.Name).Set(float64(*g.of(f)))
		}
		g.vector.Collect(out)
	}
}

func (c *Claims) newest() map[statsapi.PVCReference]*statsapi.FsStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest := map[statsapi.PVCReference]*statsapi.FsStats{}
	for _, v := range c.known {
		if v.claim == nil || v.figures == nil {
			continue
		}
		if other := newest[*v.claim]; other == nil || other.Time.Before(&v.figures.Time) {
			newest[*v.claim] = v.figures
		}
	}
	return newest
}
