// Package monitor asks the container runtime how it is, and tells the node.
//
// Input: CRI Status and Version, every 5 s as the kubelet asks. Output: NODE/runtime on
// change. Guarantee: a runtime that hangs or is gone is told within a call's deadline,
// and holds up nothing but this loop.
package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
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

// Monitor is the loop.
type Monitor struct {
	Runtime Runtime
	// Tell receives each answer.
	Tell func(*podsyncv1.Runtime)
	// CgroupDriver is what this node uses, as found at the start.
	CgroupDriver string
	Log          *slog.Logger

	name, version string
	failed        bool
}

// Run asks until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(Period)
	defer ticker.Stop()
	for {
		m.Tell(m.ask(ctx))
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
	told, err := m.status(ctx)
	if failed := err != nil; failed != m.failed {
		m.failed = failed
		if failed {
			m.Log.Error("container runtime does not answer", "err", err)
		} else {
			m.Log.Info("container runtime answers again", "runtime", m.name, "version", m.version)
		}
	}
	if err != nil {
		return &podsyncv1.Runtime{Name: m.name, Version: m.version, CgroupDriver: m.CgroupDriver, Error: err.Error()}
	}
	return told
}

func (m *Monitor) status(ctx context.Context) (*podsyncv1.Runtime, error) {
	status, err := m.Runtime.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	version, err := m.Runtime.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("version: %w", err)
	}
	m.name, m.version = version.GetRuntimeName(), version.GetRuntimeVersion()
	told := &podsyncv1.Runtime{
		Name: m.name, Version: m.version, CgroupDriver: m.CgroupDriver,
		SupplementalGroupsPolicy: status.GetFeatures().GetSupplementalGroupsPolicy(),
	}
	for _, c := range status.GetStatus().GetConditions() {
		condition := &podsyncv1.Runtime_Condition{Status: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage()}
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			told.RuntimeReady = condition
		case runtimeapi.NetworkReady:
			told.NetworkReady = condition
		}
	}
	for _, h := range status.GetRuntimeHandlers() {
		told.Handlers = append(told.Handlers, &podsyncv1.Runtime_Handler{
			Name:                    h.GetName(),
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
		})
	}
	return told, nil
}
