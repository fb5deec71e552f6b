// Package catalog lists the services of the binary in start order.
//
// An entry has the name, flags and Run of a service. The command line, the supervisor and the single placement use
// the same entry, so a service is the same however it is started.
package catalog

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodeapi"
	"github.com/microlet/microlet/services/nodestatus"
	"github.com/microlet/microlet/services/pleg"
	"github.com/microlet/microlet/services/podsync"
	"github.com/microlet/microlet/services/prober"
)

// Service is one service of the binary.
type Service struct {
	Role  role.Role
	Short string
	// NeedsKubelet says that Run needs the kubelet's configuration.
	NeedsKubelet bool
	// KubeletFields are those of the configuration that Run reads, as kubeletconfig names them; nil is all.
	KubeletFields []string
	// Bind adds the service's own flags; Run goes by what they were set to. Nil adds none.
	Bind func(fs *pflag.FlagSet)
	Run  func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error
	// Validate says what Run would refuse: field, value, remedy.
	Validate func(s service.Config, k *kubeletconfig.Config) error
	// Nice is how far the service gives way to the others where there is too little processor for all.
	Nice int
	// StopStage orders the stop: lower ones stop first.
	StopStage int
}

// Command is the service's command line.
func (s Service) Command() *cobra.Command {
	return service.Command(s.Role, s.Short, s.NeedsKubelet, s.Bind, s.Run)
}

// Services returns new services, in start order. Each call's have flags of their own.
func Services() []Service {
	return []Service{busService(), podsyncService(), plegService(), proberService(), nodestatusService(),
		nodeapiService()}
}

func busService() Service {
	config := bus.DefaultConfig()
	return Service{
		Role: role.Bus, Short: "Carry state and hints between the services",
		Bind: config.AddFlags, StopStage: 2, // the others' last words go over it
		Run: func(ctx context.Context, s service.Config, _ *kubeletconfig.Config) error {
			config.Service = s
			return bus.Run(ctx, config)
		},
		Validate: func(s service.Config, _ *kubeletconfig.Config) error {
			config.Service = s
			return config.Validate()
		},
	}
}

func podsyncService() Service {
	config := podsync.DefaultConfig()
	return Service{
		Role: role.Podsync, Short: "Run the node's pods", NeedsKubelet: true,
		Bind: config.AddFlags, StopStage: 1, // the others reach the runtime through it
		Run: func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return podsync.Run(ctx, config)
		},
		Validate: func(s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return config.Validate()
		},
	}
}

func plegService() Service {
	config := pleg.DefaultConfig()
	return Service{
		Role: role.PLEG, Short: "Turn what the runtime does into pod lifecycle events",
		Bind: config.AddFlags,
		Run: func(ctx context.Context, s service.Config, _ *kubeletconfig.Config) error {
			config.Service = s
			return pleg.Run(ctx, config)
		},
		Validate: func(s service.Config, _ *kubeletconfig.Config) error {
			config.Service = s
			return config.Validate()
		},
	}
}

func proberService() Service {
	config := prober.DefaultConfig()
	return Service{
		Role: role.Prober, Short: "Probe containers: startup, liveness, readiness", NeedsKubelet: true,
		Bind: config.AddFlags, KubeletFields: slices.Concat(service.KubeletFields(), prober.KubeletFields()),
		Run: func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return prober.Run(ctx, config)
		},
		Validate: func(s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return config.Validate()
		},
	}
}

func nodestatusService() Service {
	config := nodestatus.DefaultConfig()
	return Service{
		Role: role.NodeStatus, Short: "Register the node and keep its status and Lease", NeedsKubelet: true,
		KubeletFields: slices.Concat(service.KubeletFields(), nodestatus.KubeletFields()),
		Run: func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return nodestatus.Run(ctx, config)
		},
		Validate: func(s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return config.Validate()
		},
	}
}

func nodeapiService() Service {
	config := nodeapi.DefaultConfig()
	return Service{
		Role:         role.NodeAPI,
		Short:        "Serve the kubelet's HTTPS API",
		NeedsKubelet: true, // it shows all of it at /configz
		Bind:         config.AddFlags,
		Nice:         10, // who reads logs must not keep a pod from starting
		Run: func(ctx context.Context, s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return nodeapi.Run(ctx, config)
		},
		Validate: func(s service.Config, k *kubeletconfig.Config) error {
			config.Service, config.Kubelet = s, k
			return config.Validate()
		},
	}
}
