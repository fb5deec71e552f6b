package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	id      string
	config  *runtimeapi.PodSandboxConfig
	handler string
	ready   bool
	created time.Time
	ip      string
}

func clone[M proto.Message](m M) M { return proto.Clone(m).(M) }

// sandboxKey is what may not exist twice: the name that a runtime reserves.
func sandboxKey(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// RunPodSandbox implements CRI.
func (r *Runtime) RunPodSandbox(_ context.Context,
	req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	meta := req.GetConfig().GetMetadata()
	if meta == nil {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must include metadata")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.handlers,
		func(h *runtimeapi.RuntimeHandler) bool { return h.Name == req.RuntimeHandler }) {
		return nil, fmt.Errorf("failed to get sandbox runtime: no runtime for %q is configured", req.RuntimeHandler)
	}
	for _, s := range r.sandboxes {
		if sandboxKey(s.config.Metadata) == sandboxKey(meta) {
			return nil, fmt.Errorf("failed to reserve sandbox name %q: name %q is reserved for %q", sandboxKey(meta),
				sandboxKey(meta), s.id)
		}
	}
	s := &sandbox{id: r.newID(), config: clone(req.Config), handler: req.RuntimeHandler, ready: true, created: r.now()}
	if !s.hostNetwork() {
		s.ip = fmt.Sprintf("10.88.%d.%d", r.serial/250, r.serial%250+2)
	}
	r.sandboxes[s.id] = s
	r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

// StopPodSandbox implements CRI: idempotent, and it stops the containers too.
func (r *Runtime) StopPodSandbox(_ context.Context,
	req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.sandboxes[req.PodSandboxId]; ok {
		r.stopSandbox(s)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox ends all that runs in s. The caller holds mu.
func (r *Runtime) stopSandbox(s *sandbox) {
	for _, c := range r.sorted() {
		if c.sandboxID == s.id && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.exit(c, killedCode)
		}
	}
	if s.ready {
		s.ready, s.ip = false, ""
		r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
}

// RemovePodSandbox implements CRI: idempotent, and it removes the containers too.
func (r *Runtime) RemovePodSandbox(_ context.Context,
	req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[req.PodSandboxId]
	if !ok {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	r.stopSandbox(s)
	for _, c := range r.sorted() {
		if c.sandboxID == s.id {
			r.removeContainer(c)
		}
	}
	delete(r.sandboxes, s.id)
	r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// UpdatePodSandboxResources implements CRI.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context,
	req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[req.PodSandboxId] == nil {
		return nil, r.notFound("sandbox", req.PodSandboxId)
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// PodSandboxStatus implements CRI.
func (r *Runtime) PodSandboxStatus(_ context.Context,
	req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[req.PodSandboxId]
	if !ok {
		return nil, r.notFound("sandbox", req.PodSandboxId)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: s.status(), Timestamp: r.now().UnixNano()}, nil
}

// ListPodSandbox implements CRI; newest first, as no runtime promises any order.
func (r *Runtime) ListPodSandbox(_ context.Context,
	req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: r.listSandboxes(req.GetFilter())}, nil
}

// StreamPodSandboxes implements CRI.
func (r *Runtime) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	for batch := range slices.Chunk(r.listSandboxes(req.GetFilter()), r.batch()) {
		if err := out.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: batch}); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) listSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	var items []*runtimeapi.PodSandbox
	for _, s := range r.sandboxes {
		if f.GetId() != "" && f.Id != s.id || f.GetState() != nil && f.State.State != s.state() ||
			!matches(f.GetLabelSelector(), s.config.Labels) {
			continue
		}
		items = append(items, &runtimeapi.PodSandbox{
			Id: s.id, Metadata: clone(s.config.Metadata), State: s.state(), CreatedAt: s.created.UnixNano(),
			Labels: copyMap(s.config.Labels), Annotations: copyMap(s.config.Annotations), RuntimeHandler: s.handler,
		})
	}
	slices.SortFunc(items, func(a, b *runtimeapi.PodSandbox) int { return strings.Compare(b.Id, a.Id) })
	return items
}

// StopSandbox makes a sandbox NotReady, as if its pause process had died.
func (r *Runtime) StopSandbox(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[id]
	if !ok {
		return r.notFound("sandbox", id)
	}
	r.stopSandbox(s)
	return nil
}

func (s *sandbox) hostNetwork() bool {
	return s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	st := &runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: clone(s.config.Metadata), State: s.state(), CreatedAt: s.created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.ip},
		Labels:  copyMap(s.config.Labels), Annotations: copyMap(s.config.Annotations), RuntimeHandler: s.handler,
	}
	if ns := s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(); ns != nil {
		st.Linux = &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: clone(ns)}}
	}
	return st
}
