// Package pod defines State: what the runtime has of a pod at one moment.
//
// Package runtime reads a State from CRI, package decide uses it, and package status makes a PodStatus from it. A State
// is never changed after it was read.
package pod

import (
	"slices"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"k8s.io/apimachinery/pkg/types"
)

// State is what the runtime has of one pod.
type State struct {
	UID       types.UID
	Name      string
	Namespace string
	// Sandboxes, newest first.
	Sandboxes []Sandbox
	// Containers, newest first; several of one name are its instances.
	Containers []Container
	// Read is when the read of this state began.
	Read time.Time
}

// Sandbox is one pod sandbox.
type Sandbox struct {
	ID      string
	Ready   bool
	Created time.Time
	Attempt uint32
	// IPs of the pod's network, primary first; empty on the host's network.
	IPs         []string
	HostNetwork bool
	Labels      map[string]string
	Annotations map[string]string
	// Handler of the runtime class.
	Handler string
	// UserNamespace is the one that the runtime reports; nil if it reports none.
	UserNamespace *runtimeapi.UserNamespace
}

// Container is one instance of a container.
type Container struct {
	ID        string
	Name      string
	SandboxID string
	State     runtimeapi.ContainerState
	Created   time.Time
	Started   time.Time
	Finished  time.Time
	ExitCode  int32
	// Signal that ended it; 0 when none or unknown (not every runtime sets it in CRI).
	StopSignal runtimeapi.Signal
	Reason     string
	Message    string
	// Image is the name that the container was created with, ImageRef what it resolved to, ImageID the runtime's id.
	Image    string
	ImageRef string
	ImageID  string
	// Hash and RestartCount are the kubelet's annotations on the container.
	Hash         uint64
	RestartCount int32
	// Annotations of the container, the kubelet-compatible ones among them.
	Annotations map[string]string
	LogPath     string
	Resources   *runtimeapi.ContainerResources
	User        *runtimeapi.ContainerUser
	Mounts      []*runtimeapi.Mount
}

// Running reports whether the container's process is alive.
func (c *Container) Running() bool {
	return c.State == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Latest returns the newest instance of the named container, or nil.
func (s *State) Latest(name string) *Container {
	for i := range s.Containers {
		if s.Containers[i].Name == name {
			return &s.Containers[i]
		}
	}
	return nil
}

// ReadySandbox returns the newest sandbox if it is ready, or nil.
func (s *State) ReadySandbox() *Sandbox {
	if len(s.Sandboxes) == 0 || !s.Sandboxes[0].Ready {
		return nil
	}
	return &s.Sandboxes[0]
}

// AnyRunning reports whether a container of the pod runs, of whatever instance or sandbox.
func (s *State) AnyRunning() bool {
	for i := range s.Containers {
		if s.Containers[i].Running() {
			return true
		}
	}
	return false
}

// Digest is a short form of what a list call returns about a pod: it changes exactly when
// a sandbox or container comes, goes or changes its state.
func (s *State) Digest() string {
	parts := make([]string, 0, len(s.Sandboxes)+len(s.Containers))
	for i := range s.Sandboxes {
		parts = append(parts, "sandbox "+s.Sandboxes[i].ID+" "+strconv.FormatBool(s.Sandboxes[i].Ready))
	}
	for i := range s.Containers {
		parts = append(parts, "container "+s.Containers[i].ID+" "+s.Containers[i].State.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}
