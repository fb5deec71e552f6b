// Package usage says what pods use.
//
// It asks stats. If stats is down, or its figures are old, it reads memory and processes from the cgroups of the pods.
// What pods take of disks only stats knows. It measures large volumes slowly. A figure that is old for that reason
// alone has the time of stats' answer here.
package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/services/internal/nodepods"
)

const (
	// patience is how long stats may take: memory may run out meanwhile. diskPatience is the same when a disk fills up.
	// Only stats knows what pods have on it, and it gives its last figures after 7 s if the runtime is slow.
	patience     = 3 * time.Second
	diskPatience = 8 * time.Second
	// fresh is how old the figures of stats may be. The period of stats is 10 s.
	fresh = 30 * time.Second
)

// ErrNone says that nothing is known of any pod.
var ErrNone = errors.New("nothing is known of what pods use")

// Stats is the service; see statsv1.StatsServiceClient.
type Stats interface {
	Summary(context.Context, *statsv1.SummaryRequest, ...grpc.CallOption) (*statsv1.SummaryResponse, error)
}

// Cgroups reads pods' cgroups; see Tree.
type Cgroups interface {
	Pod(p *nodepods.Pod) (*statsapi.PodStats, error)
}

// Usage is for one goroutine.
type Usage struct {
	Stats   Stats
	Cgroups Cgroups
}

// Figures are what pods use, by UID.
type Figures map[types.UID]*statsapi.PodStats

// Of returns the figures of the pods. Those that stats does not have come from cgroups, unless disk is wanted. The
// error is why stats has none; it comes with the figures that there are, and with ErrNone if there are none at all.
func (u *Usage) Of(ctx context.Context, all []*nodepods.Pod, disk bool) (Figures, error) {
	figures := make(Figures, len(all))
	var problems []error
	var absent []types.UID
	if !disk {
		for _, p := range all {
			f, err := u.Cgroups.Pod(p)
			switch {
			case err == nil:
				figures[p.UID] = f
			case errors.Is(err, fs.ErrNotExist):
				absent = append(absent, p.UID)
			default:
				problems = append(problems, err)
			}
		}
		if len(figures) > 0 { // else the cgroups may be elsewhere
			for _, uid := range absent { // nothing of them has run yet, or they have just ended
				figures[uid] = &statsapi.PodStats{Memory: memoryOf(0)}
			}
		}
		if len(figures) == len(all) {
			return figures, nil
		}
	}
	known, err := u.summary(ctx, disk)
	if err != nil {
		problems = append(problems, err)
	}
	for _, p := range all {
		if f := known[p.UID]; figures[p.UID] == nil && f != nil {
			figures[p.UID] = f
		}
	}
	if len(figures) == 0 {
		return nil, errors.Join(append(problems, ErrNone)...)
	}
	return figures, errors.Join(problems...)
}

func (u *Usage) summary(ctx context.Context, disk bool) (Figures, error) {
	limit := patience
	if disk {
		limit = diskPatience
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := u.Stats.Summary(ctx, &statsv1.SummaryRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask stats: %w", err)
	}
	if age := time.Since(resp.GetTaken().AsTime()); age > fresh || age < -fresh {
		return nil, fmt.Errorf("ask stats: its figures are %v old: %s", age.Round(time.Second), resp.GetProblem())
	}
	var s statsapi.Summary
	if err := json.Unmarshal(resp.GetJson(), &s); err != nil {
		return nil, fmt.Errorf("read the figures of stats: %w", err)
	}
	figures := make(Figures, len(s.Pods))
	for i := range s.Pods {
		figures[types.UID(s.Pods[i].PodRef.UID)] = &s.Pods[i]
	}
	figures.renew(resp.GetLate(), metav1.NewTime(resp.GetTaken().AsTime()))
	return figures, nil
}

// renew gives figures that are late the time of the answer, since there are no newer ones.
func (f Figures) renew(late []*statsv1.PodFolders, taken metav1.Time) {
	for _, folders := range late {
		pod := f[types.UID(folders.GetPodUid())]
		if pod == nil {
			continue
		}
		for i := range pod.VolumeStats {
			if v := &pod.VolumeStats[i]; slices.Contains(folders.GetVolumes(), v.Name) {
				v.Time = taken
			}
		}
		for i := range pod.Containers {
			if c := &pod.Containers[i]; c.Logs != nil && slices.Contains(folders.GetContainers(), c.Name) {
				c.Logs.Time = taken
			}
		}
	}
}
