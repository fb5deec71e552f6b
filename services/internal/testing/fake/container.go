package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// killedCode is the exit code of a process that SIGKILL ended.
const killedCode = 137

type container struct {
	id, sandboxID              string
	config                     *runtimeapi.ContainerConfig
	logDir                     string
	state                      runtimeapi.ContainerState
	created, started, finished time.Time
	exitCode                   int32
	reason, message            string
	imageRef, imageID          string
	program                    Program
	exited                     chan struct{}
	log                        *os.File // of CRI-O's; nil if it has none
	lifetime                   *time.Timer
}

// CreateContainer implements CRI.
func (r *Runtime) CreateContainer(_ context.Context,
	req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if req.GetConfig().GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "container config must include metadata")
	}
	image := r.images.find(req.Config.GetImage().GetImage())
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sandboxes[req.PodSandboxId]
	if !ok {
		return nil, r.notFound("sandbox", req.PodSandboxId)
	}
	if !s.ready {
		return nil, fmt.Errorf("sandbox %q is not running", s.id)
	}
	if image == nil {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: not found",
			req.Config.GetImage().GetImage())
	}
	for _, other := range r.containers {
		if other.sandboxID == s.id && other.config.Metadata.Name == req.Config.Metadata.Name &&
			other.config.Metadata.Attempt == req.Config.Metadata.Attempt {
			return nil, r.reserved(req.Config.Metadata.Name, other.id)
		}
	}
	c := &container{
		id: r.newID(), sandboxID: s.id, config: clone(req.Config), logDir: s.config.LogDirectory,
		state: runtimeapi.ContainerState_CONTAINER_CREATED, created: r.now(),
		imageID: image.Id, imageRef: image.Id, exited: make(chan struct{}),
	}
	if len(image.RepoDigests) > 0 {
		c.imageRef = image.RepoDigests[0]
	}
	if r.crio {
		if err := c.openLog(); err != nil {
			return nil, err
		}
	}
	r.containers[c.id] = c
	r.emit(c.id, s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

// StartContainer implements CRI.
func (r *Runtime) StartContainer(_ context.Context,
	req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[req.ContainerId]
	if !ok {
		return nil, r.notFound("container", req.ContainerId)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, fmt.Errorf("container %q is in state %s", c.id, c.state)
	}
	c.program = r.programs[c.config.Metadata.Name]
	if err := c.program.StartErr; err != nil {
		r.exit(c, 128)
		c.reason, c.message = "StartError", err.Error()
		return nil, err
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, r.now()
	r.emit(c.id, r.sandboxes[c.sandboxID], runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if life := c.program.Lifetime; life > 0 {
		c.lifetime = time.AfterFunc(life, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.exit(c, c.program.ExitCode)
		})
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// exit ends the process of c, if it has not ended. The caller holds mu.
func (r *Runtime) exit(c *container, code int32) {
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	if c.lifetime != nil {
		c.lifetime.Stop()
	}
	c.state, c.finished, c.exitCode = runtimeapi.ContainerState_CONTAINER_EXITED, r.now(), code
	c.reason = "Completed"
	if code != 0 {
		c.reason = "Error"
	}
	close(c.exited)
	r.emit(c.id, r.sandboxes[c.sandboxID], runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// ExitContainer ends a running container by itself, with this exit code.
func (r *Runtime) ExitContainer(id string, code int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return r.notFound("container", id)
	}
	r.exit(c, code)
	return nil
}

// StopContainer implements CRI: idempotent, and it waits as the container's Program says.
func (r *Runtime) StopContainer(ctx context.Context,
	req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	c, ok := r.containers[req.ContainerId]
	if !ok || c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		r.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil
	}
	grace := time.Duration(req.Timeout) * time.Second
	if err := c.program.StopErr; err != nil {
		r.mu.Unlock()
		return nil, err
	}
	delay, code := c.program.StopDelay, c.program.ExitCode
	if delay > grace {
		delay, code = grace, killedCode
	}
	r.mu.Unlock()

	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.exited:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exit(c, code)
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements CRI: idempotent, and it kills what runs.
func (r *Runtime) RemoveContainer(_ context.Context,
	req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.containers[req.ContainerId]; ok {
		r.removeContainer(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// removeContainer kills and forgets c. The caller holds mu.
func (r *Runtime) removeContainer(c *container) {
	r.exit(c, killedCode)
	delete(r.containers, c.id)
	r.emit(c.id, r.sandboxes[c.sandboxID], runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

// ListContainers implements CRI.
func (r *Runtime) ListContainers(_ context.Context,
	req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: r.listContainers(req.GetFilter())}, nil
}

// StreamContainers implements CRI.
func (r *Runtime) StreamContainers(req *runtimeapi.StreamContainersRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	for batch := range slices.Chunk(r.listContainers(req.GetFilter()), r.batch()) {
		if err := out.Send(&runtimeapi.StreamContainersResponse{Containers: batch}); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) listContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*runtimeapi.Container
	for _, c := range r.sorted() {
		if f.GetId() != "" && f.Id != c.id || f.GetPodSandboxId() != "" && f.PodSandboxId != c.sandboxID ||
			f.GetState() != nil && f.State.State != c.state || !matches(f.GetLabelSelector(), c.config.Labels) {
			continue
		}
		found = append(found, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandboxID, Metadata: clone(c.config.Metadata), Image: clone(c.config.Image),
			ImageRef: c.imageRef, ImageId: c.imageID, State: c.state, CreatedAt: c.created.UnixNano(),
			Labels: copyMap(c.config.Labels), Annotations: copyMap(c.config.Annotations),
		})
	}
	return found
}

// sorted returns the containers, newest first. The caller holds mu.
func (r *Runtime) sorted() []*container {
	all := make([]*container, 0, len(r.containers))
	for _, c := range r.containers {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *container) int { return strings.Compare(b.id, a.id) })
	return all
}

// ContainerStatus implements CRI.
func (r *Runtime) ContainerStatus(_ context.Context,
	req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[req.ContainerId]
	if !ok {
		return nil, r.notFound("container", req.ContainerId)
	}
	answer := &runtimeapi.ContainerStatusResponse{Status: c.status()}
	return answer, r.describeUser(c, answer, req.GetVerbose())
}

func (c *container) status() *runtimeapi.ContainerStatus {
	st := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: clone(c.config.Metadata), State: c.state, CreatedAt: c.created.UnixNano(),
		ExitCode: c.exitCode, Reason: c.reason, Message: c.message,
		Image: clone(c.config.Image), ImageRef: c.imageRef, ImageId: c.imageID,
		Labels: copyMap(c.config.Labels), Annotations: copyMap(c.config.Annotations),
	}
	for _, m := range c.config.Mounts {
		st.Mounts = append(st.Mounts, clone(m))
	}
	if c.config.LogPath != "" {
		st.LogPath = filepath.Join(c.logDir, c.config.LogPath)
	}
	if !c.started.IsZero() {
		st.StartedAt = c.started.UnixNano()
	}
	if !c.finished.IsZero() {
		st.FinishedAt = c.finished.UnixNano()
	}
	if res := c.config.GetLinux().GetResources(); res != nil {
		st.Resources = &runtimeapi.ContainerResources{Linux: clone(res)}
	}
	return st
}

// UpdateContainerResources implements CRI.
func (r *Runtime) UpdateContainerResources(_ context.Context,
	req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[req.ContainerId]
	if !ok {
		return nil, r.notFound("container", req.ContainerId)
	}
	if c.config.Linux == nil {
		c.config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if c.config.Linux.Resources == nil {
		c.config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
	}
	// What is 0 stays as it is, and -1 is no limit.
	proto.Merge(c.config.Linux.Resources, req.GetLinux())
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog implements CRI; only the logs of CRI-O's containers exist.
func (r *Runtime) ReopenContainerLog(_ context.Context,
	req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[req.ContainerId]
	if !ok || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, r.notFound("running container", req.ContainerId)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, c.reopenLog()
}

// errExited ends what is executed in a container when the container ends.
var errExited = errors.New("the container has exited")

// ExecSync implements CRI, answered by the container's Program. It ends with the container, as
// all of a container's processes do.
func (r *Runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	r.mu.Lock()
	c, ok := r.containers[req.ContainerId]
	if !ok || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return nil, r.notFound("running container", req.ContainerId)
	}
	exec := c.program.Exec
	r.mu.Unlock()
	if exec == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.Timeout)*time.Second)
		defer cancel()
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-c.exited:
			end(errExited)
		case <-ctx.Done():
		}
	}()
	stdout, stderr, code, err := exec(ctx, req.Cmd)
	if errors.Is(context.Cause(ctx), errExited) {
		return &runtimeapi.ExecSyncResponse{Stdout: stdout, Stderr: stderr, ExitCode: killedCode}, nil
	}
	if ctx.Err() != nil {
		return r.timedOut(req.GetTimeout())
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout, Stderr: stderr, ExitCode: code}, nil
}
