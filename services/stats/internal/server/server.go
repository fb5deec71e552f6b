// Package server answers the callers of stats over gRPC.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/services/internal/fsusage"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/stats/internal/cachedvalue"
	"github.com/microlet/microlet/services/stats/internal/cgroupstats"
	"github.com/microlet/microlet/services/stats/internal/cri"
	"github.com/microlet/microlet/services/stats/internal/exposition"
	"github.com/microlet/microlet/services/stats/internal/summary"
)

// patience is how long what an answer is made of may take together. It is shorter than nodeapi's patience of 8 s: a
// summary without the runtime's figures, with the reason, is better than none.
const patience = 7 * time.Second

// readers bounds the answers that are made at one time: each holds a page's part, or a summary.
const readers = 8

// Options of a Server. All fields but Folders, PodStats, Metrics and Pods are required.
type Options struct {
	NodeName string
	// Began is when the service began.
	Began time.Time
	// Age is how old figures may be that are expensive to take.
	Age time.Duration
	// Cgroups, Usage and Created are what is shared.
	Cgroups *cachedvalue.Value[*cgroupstats.Snapshot]
	Usage   *cachedvalue.Value[*cri.Usage]
	Created *cachedvalue.Value[cri.Created]
	// PodStats and Metrics are the runtime's own figures of pods; nil if pods are measured by their cgroups. A runtime
	// that does not have them leaves that to the cgroups, too.
	PodStats *cachedvalue.Value[*cri.PodStats]
	Metrics  *cachedvalue.Value[*cri.Metrics]
	// Pods returns those that podsync has published, by their UID. Only PodStats needs it.
	Pods func() map[string]*nodepods.Pod
	// HugePages takes what is set aside as huge pages off the available memory of the node.
	HugePages bool
	// RootDir is the kubelet's root folder. Its file system is the node's.
	RootDir string
	// Filesystems are asked for what RootDir, layers and images lie on.
	Filesystems interface {
		Usage(ctx context.Context, path string) (fsusage.Usage, error)
	}
	// Folders report what volumes and logs take; nil reports nothing.
	Folders summary.Folders
	Log     *slog.Logger
}

// Server implements the gRPC service.
type Server struct {
	statsv1.UnimplementedStatsServiceServer

	o     Options
	slots chan struct{}

	mu sync.Mutex
	// unlisted are the containers that have a cgroup, and that the runtime's last list has not.
	unlisted map[string]bool
}

// New returns a server.
func New(o Options) *Server { return &Server{o: o, slots: make(chan struct{}, readers)} }

// enter waits for a place among the readers.
func (s *Server) enter(ctx context.Context) (leave func(), err error) {
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// unavailable is the error of figures that cannot be had.
func unavailable(err error) error { return status.Error(codes.Unavailable, err.Error()) }

// Summary implements the gRPC service.
func (s *Server) Summary(ctx context.Context, r *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	in, problem, err := s.gather(ctx, r.GetOnlyCpuAndMemory())
	if err != nil {
		return nil, unavailable(err)
	}
	built := summary.Build(*in)
	text, err := json.Marshal(built)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode the summary: %v", err)
	}
	return &statsv1.SummaryResponse{
		Json: text, Taken: timestamppb.New(in.Snapshot.ReadAt), Problem: problem, Late: late(in.Folders, built),
	}, nil
}

// late names the folders of the summary's pods with late figures; the kubelet's format has no place for that.
func late(folders summary.Folders, of *statsapi.Summary) (all []*statsv1.PodFolders) {
	if folders == nil {
		return nil
	}
	for i := range of.Pods {
		pod := &of.Pods[i]
		found := &statsv1.PodFolders{PodUid: pod.PodRef.UID}
		for _, v := range folders.Volumes(pod.PodRef.UID) {
			if v.Late {
				found.Volumes = append(found.Volumes, v.Name)
			}
		}
		for j := range pod.Containers {
			name := pod.Containers[j].Name
			if f, ok := folders.Logs(pod.PodRef.UID, name); ok && f.Late {
				found.Containers = append(found.Containers, name)
			}
		}
		if len(found.GetVolumes())+len(found.GetContainers()) > 0 {
			all = append(all, found)
		}
	}
	return all
}

// gather collects what a summary is built from. problem says why a part of it is old.
func (s *Server) gather(ctx context.Context, cpuAndMemory bool) (in *summary.Input, problem string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var usage cachedvalue.Answer[*cri.Usage]
	var podStats cachedvalue.Answer[*cri.PodStats]
	var usageErr, podStatsErr error
	var runtime sync.WaitGroup // it is asked beside the cgroups, since all take their time
	if !cpuAndMemory {
		runtime.Go(func() { usage, usageErr = s.o.Usage.Get(ctx, s.o.Age) })
	}
	if s.o.PodStats != nil {
		runtime.Go(func() { podStats, podStatsErr = s.o.PodStats.Get(ctx, s.o.Age) })
	}
	cgroups, err := s.o.Cgroups.Get(ctx, s.o.Age)
	runtime.Wait()
	if err != nil {
		return nil, "", err
	}
	if podStatsErr != nil { // a summary without any pod would say that there is none
		return nil, "", podStatsErr
	}
	in = &summary.Input{
		NodeName: s.o.NodeName, Began: s.o.Began, Snapshot: cgroups.Value, CPUAndMemory: cpuAndMemory,
		HugePages: s.o.HugePages,
	}
	problem = join(cgroups.Problem, podStats.Problem, nil)
	if p := podStats.Value; p != nil && p.Supported {
		in.Runtime, in.Pods = p, s.o.Pods()
	}
	in.Created = s.created(ctx, containers(in))
	if !cpuAndMemory {
		in.Usage, in.Folders, in.RootFs = usage.Value, s.o.Folders, s.rootFs(ctx)
		if in.Usage != nil {
			in.Filesystems = s.filesystems(ctx, in.Usage)
		}
		problem = join(problem, usage.Problem, usageErr)
	}
	return in, problem, nil
}

// join puts what is wrong into one sentence.
func join(problem, other string, err error) string {
	if err != nil {
		other = err.Error()
	}
	switch {
	case problem == "":
		return other
	case other == "":
		return problem
	}
	return problem + "; " + other
}

// created returns when containers were created. The runtime is asked only when a container has come that the last list
// has not. A container that a new list does not contain either, such as one that is being removed, is not asked for
// again.
func (s *Server) created(ctx context.Context, ids []string) cri.Created {
	last, ok := s.o.Created.Last()
	if ok && s.areUnlisted(missing(last.Value, ids)) {
		return last.Value
	}
	asked := time.Now()
	answer, err := s.o.Created.Get(ctx, time.Second)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			s.o.Log.Debug("runtime does not list when containers were created", logkey.Err, err)
		}
		return last.Value
	}
	if !answer.ReadAt.Before(asked) { // an older list may be older than a container, too
		s.setUnlisted(missing(answer.Value, ids))
	}
	return answer.Value
}

// areUnlisted reports whether the runtime's last list has none of these containers for sure.
func (s *Server) areUnlisted(ids []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id string) bool { return !s.unlisted[id] })
}

func (s *Server) setUnlisted(ids []string) {
	all := make(map[string]bool, len(ids))
	for _, id := range ids {
		all[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlisted = all
}

// containers are the IDs of all containers that the summary has figures of.
func containers(in *summary.Input) []string {
	var ids []string
	if in.Runtime == nil {
		for _, c := range in.Snapshot.Cgroups {
			if c.Kind == cgroupstats.Container && c.Pod != nil {
				ids = append(ids, c.ID)
			}
		}
		return ids
	}
	for _, p := range in.Pods {
		sandbox := in.Runtime.Sandboxes[p.SandboxID]
		if sandbox == nil {
			continue
		}
		ids = append(ids, p.SandboxID)
		for _, c := range sandbox.GetLinux().GetContainers() {
			ids = append(ids, c.GetAttributes().GetId())
		}
	}
	return ids
}

// missing are the IDs that have no time of creation.
func missing(created cri.Created, ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		_, ok := created[id]
		return ok
	})
}

// rootFs asks the file system of the kubelet's root folder; nil if it does not answer. It is asked for each summary, as
// the kubelet asks it: a user who sets a threshold by what is free must not see what was free before an image was
// pulled.
func (s *Server) rootFs(ctx context.Context) *fsusage.Usage {
	usage, err := s.o.Filesystems.Usage(ctx, s.o.RootDir)
	if err != nil {
		s.o.Log.Debug("file system of the node does not answer", logkey.Path, s.o.RootDir, logkey.Err, err)
		return nil
	}
	return &usage
}

// filesystems asks the file systems that layers and images lie on.
func (s *Server) filesystems(ctx context.Context, u *cri.Usage) map[string]fsusage.Usage {
	all := map[string]fsusage.Usage{}
	ask := func(path string) {
		if _, done := all[path]; done || path == "" {
			return
		}
		usage, err := s.o.Filesystems.Usage(ctx, path)
		if err != nil {
			s.o.Log.Debug("a file system of the runtime's does not answer", logkey.Path, path, logkey.Err, err)
			usage = fsusage.Usage{}
		}
		all[path] = usage
	}
	if u.Images != nil {
		ask(u.Images.Mountpoint)
	}
	for _, l := range u.Layers {
		ask(l.Mountpoint)
	}
	for path, usage := range all {
		if usage.Time.IsZero() {
			delete(all, path)
		}
	}
	return all
}

// Page implements the gRPC service.
func (s *Server) Page(r *statsv1.PageRequest, to statsv1.StatsService_PageServer) error {
	leave, err := s.enter(to.Context())
	if err != nil {
		return err
	}
	defer leave()
	var metrics cachedvalue.Answer[*cri.Metrics]
	if r.GetPage() == statsv1.MetricsPage_METRICS_PAGE_CADVISOR && s.o.Metrics != nil {
		if metrics, err = s.o.Metrics.Get(to.Context(), s.o.Age); err != nil {
			return unavailable(err)
		}
	}
	in, problem, err := s.gather(to.Context(), true)
	if err != nil {
		return unavailable(err)
	}
	problem = join(problem, metrics.Problem, nil)
	sink := parts(to, &statsv1.PageResponse{Taken: timestamppb.New(in.Snapshot.ReadAt), Problem: problem})
	switch r.GetPage() {
	case statsv1.MetricsPage_METRICS_PAGE_RESOURCE:
		return exposition.Resource(summary.Build(*in), problem != "", sink)
	case statsv1.MetricsPage_METRICS_PAGE_CADVISOR:
		if m := metrics.Value; m != nil && m.Supported {
			return exposition.Runtime(m, in.Snapshot.Machine, sink)
		}
		return exposition.Cadvisor(in.Snapshot, in.Created, time.Now(), sink)
	default:
		return status.Error(codes.InvalidArgument, fmt.Sprintf("there is no page %s", r.GetPage()))
	}
}

// parts sends a page part by part. A part is encoded before Send returns, so its bytes may be used again.
func parts(to statsv1.StatsService_PageServer, first *statsv1.PageResponse) func([]byte) error {
	return func(part []byte) error {
		m := first
		if m == nil {
			m = &statsv1.PageResponse{}
		}
		first, m.Text = nil, part
		return to.Send(m)
	}
}
