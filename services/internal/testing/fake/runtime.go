package fake

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Program says how the process of a container behaves. The zero value runs until it is
// stopped, and ends at once, with exit code 0, when asked to.
type Program struct {
	// Lifetime after which the process exits by itself with ExitCode; 0 is for ever.
	Lifetime time.Duration
	// ExitCode when it exits by itself or obeys SIGTERM.
	ExitCode int32
	// StopDelay is how long it takes to obey SIGTERM. If that is longer than the grace
	// period, it is killed when the period ends and its exit code is 137.
	StopDelay time.Duration
	// StopErr is what StopContainer returns instead of stopping it, as containerd does when it
	// cannot parse the image's STOPSIGNAL. The end of its sandbox ends it all the same.
	StopErr error
	// StartErr is what StartContainer returns instead of starting it. The container is
	// then exited with code 128 and reason StartError, as containerd leaves it.
	StartErr error
	// User is what the runtime says that it runs as, from its creation on; nil says nothing, as runtimes before
	// CRI's field of 1.31.
	User *runtimeapi.LinuxContainerUser
	// Exec answers ExecSync; nil answers exit code 0 and nothing printed.
	Exec func(ctx context.Context, cmd []string) (stdout, stderr []byte, exitCode int32, err error)
}

// Runtime is an in-memory container runtime. Its zero value is not usable, see NewRuntime.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	hooks
	images imageStore
	events eventHub
	now    func() time.Time

	mu         sync.Mutex
	serial     int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	programs   map[string]Program
	conditions []*runtimeapi.RuntimeCondition
	handlers   []*runtimeapi.RuntimeHandler
	driver     runtimeapi.CgroupDriver
	perMessage int
	crio       bool // see ActAsCRIO
}

var _ runtimeapi.RuntimeServiceServer = (*Runtime)(nil)

// NewRuntime returns a runtime that is ready, with the cgroupfs driver and no images.
// now is its clock; nil is time.Now.
func NewRuntime(now func() time.Time) *Runtime {
	if now == nil {
		now = time.Now
	}
	r := &Runtime{
		now:        now,
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		programs:   map[string]Program{},
		driver:     runtimeapi.CgroupDriver_CGROUPFS,
		perMessage: 5000,
		handlers:   []*runtimeapi.RuntimeHandler{{Name: ""}, {Name: "runc"}},
	}
	r.images.init()
	r.SetCondition(runtimeapi.RuntimeReady, true, "", "")
	r.SetCondition(runtimeapi.NetworkReady, true, "", "")
	return r
}

// SetProgram gives every container of this name that is started from now on its behaviour.
func (r *Runtime) SetProgram(containerName string, p Program) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.programs[containerName] = p
}

// SetCondition sets a condition that Status reports.
func (r *Runtime) SetCondition(kind string, ok bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conditions {
		if c.Type == kind {
			c.Status, c.Reason, c.Message = ok, reason, message
			return
		}
	}
	r.conditions = append(r.conditions,
		&runtimeapi.RuntimeCondition{Type: kind, Status: ok, Reason: reason, Message: message})
}

// SetCgroupDriver sets what RuntimeConfig answers.
func (r *Runtime) SetCgroupDriver(d runtimeapi.CgroupDriver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.driver = d
}

// SetStreamBatch sets how many sandboxes or containers a message of a stream has at most. At first that is 5000, as in
// containerd.
func (r *Runtime) SetStreamBatch(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.perMessage = n
}

func (r *Runtime) batch() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.perMessage
}

// Version implements CRI.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1.0.0",
		RuntimeApiVersion: "v1"}, nil
}

// Status implements CRI.
func (r *Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.StatusResponse{
		Status:   &runtimeapi.RuntimeStatus{},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	for _, c := range r.conditions {
		resp.Status.Conditions = append(resp.Status.Conditions, clone(c))
	}
	for _, h := range r.handlers {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, clone(h))
	}
	return resp, nil
}

// RuntimeConfig implements CRI.
func (r *Runtime) RuntimeConfig(context.Context,
	*runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: r.driver}}, nil
}

// UpdateRuntimeConfig implements CRI; the fake has nothing to configure.
func (r *Runtime) UpdateRuntimeConfig(context.Context,
	*runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// newID returns the next id, 64 hex digits like a real one. The caller holds mu.
func (r *Runtime) newID() string {
	r.serial++
	return fmt.Sprintf("%064x", r.serial)
}

// matches reports whether every pair of selector is in labels.
func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func copyMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}
