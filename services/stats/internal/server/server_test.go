package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/cadvisor/lib/model"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/stats/internal/cachedvalue"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
	"github.com/microlet/microlet/services/stats/internal/summary"
)

// shared runs a shared value until ctx ends.
func shared[T any](ctx context.Context, read func(context.Context) (T, error)) *cachedvalue.Value[T] {
	v := cachedvalue.New(cachedvalue.Options[T]{
		What: "figures", Timeout: time.Second, Patience: time.Second, Stale: time.Minute,
		Log: slog.New(slog.DiscardHandler), Read: read,
	})
	go func() { _ = v.Run(ctx) }()
	return v
}

// A container that the runtime does not list, such as one that it could not remove, costs one list and not one each
// time.
func TestTheRuntimeIsAskedOnceForAContainerThatItDoesNotList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lists := 0
		listed := cri.Created{"a": time.Now()}
		created := shared(ctx, func(context.Context) (cri.Created, error) {
			lists++
			return listed, nil
		})
		s := New(Options{Created: created, Log: slog.New(slog.DiscardHandler)})
		for _, step := range []struct {
			ids  []string
			want int
		}{
			{[]string{"a"}, 1},
			{[]string{"a", "b"}, 2},
			{[]string{"a", "b"}, 2},
			{[]string{"a"}, 2},
			{[]string{"b", "c"}, 3},
			{[]string{"c"}, 3},
		} {
			time.Sleep(10 * time.Second)
			s.created(ctx, step.ids)
			if lists != step.want {
				t.Errorf("after %q the runtime has listed %d times, want %d", step.ids, lists, step.want)
			}
		}
	})
}

// filling is a file system that has a file more each time it is asked.
type filling struct{ used uint64 }

func (f *filling) Usage(context.Context, string) (fsusage.Usage, error) {
	f.used++
	return fsusage.Usage{Time: time.Now(), Inodes: 1000, InodesFree: 1000 - f.used}, nil
}

// What is free on the node's disk is as new as the summary, while the cgroups may be ten seconds old. Upstream's
// ImageGCNoEviction sets a threshold by it right after it has pulled images.
func TestTheNodesDiskIsAskedForEachSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reads := 0
		cgroups := shared(ctx, func(context.Context) (*cgroupstats.Snapshot, error) {
			reads++
			root := &cgroupstats.Cgroup{Kind: cgroupstats.Root, Stats: &model.ContainerStats{}}
			return &cgroupstats.Snapshot{ReadAt: time.Now(), Cgroups: []*cgroupstats.Cgroup{root}}, nil
		})
		usage := shared(ctx, func(context.Context) (*cri.Usage, error) { return &cri.Usage{}, nil })
		created := shared(ctx, func(context.Context) (cri.Created, error) { return cri.Created{}, nil })
		s := New(Options{
			Age: 10 * time.Second, Cgroups: cgroups, Usage: usage, Created: created, RootDir: "/var/lib/kubelet",
			Filesystems: &filling{}, Log: slog.New(slog.DiscardHandler),
		})
		for want := uint64(999); want > 996; want-- {
			resp, err := s.Summary(ctx, &statsv1.SummaryRequest{})
			if err != nil {
				t.Fatal(err)
			}
			var got statsapi.Summary
			if err := json.Unmarshal(resp.GetJson(), &got); err != nil {
				t.Fatal(err)
			}
			if fs := got.Node.Fs; fs == nil || *fs.InodesFree != want {
				t.Errorf("the node's file system is %+v, want %d free inodes", fs, want)
			}
		}
		if reads != 1 {
			t.Errorf("the cgroups were read %d times for three summaries at one time", reads)
		}
	})
}

// slow has one volume, and the logs of one container, that take long to measure.
type slow struct{}

func (slow) Volumes(uid string) []summary.Volume {
	return []summary.Volume{
		{VolumeStats: statsapi.VolumeStats{Name: "large"}, Late: uid == "slow"},
		{VolumeStats: statsapi.VolumeStats{Name: "small"}},
	}
}

func (slow) Logs(uid, container string) (summary.Folder, bool) {
	return summary.Folder{Late: uid == "slow" && container == "talks"}, container != "silent"
}

func (slow) Own(string) (summary.Folder, bool) { return summary.Folder{}, false }

func TestFoldersThatAreLateAreNamed(t *testing.T) {
	of := &statsapi.Summary{}
	for _, uid := range []string{"fast", "slow"} {
		of.Pods = append(of.Pods, statsapi.PodStats{
			PodRef:     statsapi.PodReference{UID: uid},
			Containers: []statsapi.ContainerStats{{Name: "silent"}, {Name: "talks"}, {Name: "whispers"}},
		})
	}
	got := late(slow{}, of)
	if len(got) != 1 || got[0].GetPodUid() != "slow" || !slices.Equal(got[0].GetVolumes(), []string{"large"}) ||
		!slices.Equal(got[0].GetContainers(), []string{"talks"}) {
		t.Errorf("late are %v", got)
	}
	if got := late(nil, of); got != nil {
		t.Errorf("nothing is measured, and late are %v", got)
	}
}
