// Package monitor publishes the state of the container runtime.
//
// It calls CRI Status and Version every 5 s, as the kubelet does, and puts NODE/runtime on change. A runtime that
// hangs or is down is reported within the deadline of a call and blocks only this loop.
package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
)

// Period between two questions, and the deadline of each.
const (
	Period  = 5 * time.Second
	timeout = 10 * time.Second
)

// Runtime answers for the container runtime.
type Runtime interface {
	Status(ctx context.Context) (*runtimeapi.StatusResponse, error)
	Version(ctx context.Context) (*runtimeapi.VersionResponse, error)
}

// Listener learns what the runtime answers. It must not block.
type Listener interface {
	// Learn takes each answer; one that failed says so in its Error.
	Learn(r *podsyncv1.Runtime)
}

// Monitor is the loop.
type Monitor struct {
	runtime   Runtime
	driver    string
	listeners []Listener
	log       *slog.Logger

	name, version string
	failed        bool
}

// New returns a monitor. Its listeners learn each answer in their order; driver is the cgroup driver that podsync uses.
func New(runtime Runtime, driver string, log *slog.Logger, listeners ...Listener) *Monitor {
	return &Monitor{runtime: runtime, driver: driver, listeners: listeners, log: log}
}

// Run asks until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(Period)
	defer ticker.Stop()
	for {
		answer := m.ask(ctx)
		for _, l := range m.listeners {
			l.Learn(answer)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (m *Monitor) ask(ctx context.Context) *podsyncv1.Runtime {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := m.status(ctx)
	if failed := err != nil; failed != m.failed {
		m.failed = failed
		if failed {
			m.log.Error("container runtime does not answer", logkey.Err, err)
		} else {
			m.log.Info("container runtime answers again", "runtime", m.name, "version", m.version)
		}
	}
	if err != nil {
		return &podsyncv1.Runtime{Name: m.name, Version: m.version, CgroupDriver: m.driver, Error: err.Error()}
	}
	return answer
}

func (m *Monitor) status(ctx context.Context) (*podsyncv1.Runtime, error) {
	status, err := m.runtime.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	version, err := m.runtime.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("version: %w", err)
	}
	m.name, m.version = version.GetRuntimeName(), version.GetRuntimeVersion()
	answer := &podsyncv1.Runtime{
		Name: m.name, Version: m.version, CgroupDriver: m.driver,
		SupplementalGroupsPolicy: status.GetFeatures().GetSupplementalGroupsPolicy(),
	}
	for _, c := range status.GetStatus().GetConditions() {
		condition := &podsyncv1.Runtime_Condition{Status: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage()}
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			answer.RuntimeReady = condition
		case runtimeapi.NetworkReady:
			answer.NetworkReady = condition
		}
	}
	for _, h := range status.GetRuntimeHandlers() {
		answer.Handlers = append(answer.Handlers, &podsyncv1.Runtime_Handler{
			Name:                    h.GetName(),
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
		})
	}
	return answer, nil
}
