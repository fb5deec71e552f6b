package manager

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod/podtest"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// The tests' tables are read by these.
var (
	t0      = podtest.Now
	testPod = podtest.New
	ctr     = podtest.Container
	ready   = podtest.Ready
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	dead    = runtimeapi.ContainerState_CONTAINER_EXITED
)

func inputs() status.Inputs { return status.Inputs{Now: t0, HostIPs: []string{"192.0.2.1"}} }
