package podsync

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/podssocket"
	"github.com/microlet/microlet/services/internal/service"
)

// podsAPI makes the socket of the Pods API for nodeapi, which serves it. It is nil if the feature gate is off.
type podsAPI struct{ server *podssocket.Server }

func newPodsAPI(s *service.Service, k *kubeletconfig.Config) (*podsAPI, error) {
	if !k.FeatureEnabled("PodsAPI") {
		return nil, nil
	}
	made := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "microlet_podsync_pods_api_sockets_total",
		Help: "Requests of nodeapi for the socket of the Pods API, by result: ok, denied (to another role), failed.",
	}, []string{"result"})
	if err := s.Metrics.Register(made); err != nil {
		return nil, fmt.Errorf("metrics of the Pods API: %w", err)
	}
	return &podsAPI{&podssocket.Server{
		RootDir: k.Node.RootDir, Peers: s.Config.Peers(), Log: s.Log,
		Count: func(result string) { made.WithLabelValues(result).Inc() },
	}}, nil
}

func (p *podsAPI) start(s *service.Service) {
	if p == nil {
		return
	}
	s.Go("socket of the Pods API", func(ctx context.Context) error {
		l, err := s.Listen(s.Config.PodsAPISocket())
		if err != nil {
			return fmt.Errorf("socket of the Pods API: %w", err)
		}
		return p.server.Run(ctx, l)
	})
}
