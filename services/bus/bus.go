package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/service"
)

// turnPeriod is how often the bus looks at its own server.
const turnPeriod = time.Second

// Run runs the bus until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, err := service.New(cfg.Service, role.Bus)
	if err != nil {
		return err
	}
	o := cfg.server()
	o.Log = s.Log
	lost := &notifier{publish: func(subj string) error { return s.Bus.Publish(subj, &emptypb.Empty{}) }}
	s.Bus.OnConnect(lost.retry)
	o.Disconnected = func(r role.Role, replica string) { lost.notify(subject.DisconnectEvent(r, replica)) }
	// The folder of the socket is there before the server writes its certificate into it.
	l, err := s.Listen(cfg.Service.BusSocket())
	if err != nil {
		return err
	}
	server, err := StartServer(ctx, o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer server.Close() // after every service of the process that hangs on it
	if in := cfg.Service.Placement; in != nil {
		in.SetBus(server)
		defer in.SetBus(nil)
	}
	s.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "microlet_bus_connections", Help: "Clients connected to the bus.",
	}, func() float64 { return float64(server.Connections()) }))
	s.Metrics.MustRegister(append(traffic(server), newUsage(server))...)
	door := NewDoor(server, cfg.Service.Peers(), s.Metrics)
	s.Go("door", func(ctx context.Context) error { return door.Serve(ctx, l) })
	s.Go("server", func(ctx context.Context) error { return watch(ctx, server, s.Pulse.Turn) })
	s.Ready(cfg.listening(server))
	return s.Run(ctx)
}

// listening says where, for the operator.
func (c *Config) listening(s *Server) string {
	if at := s.ViewAddress(); at != "" {
		return "listening on " + c.Service.BusSocket() + ", and on " + at + " for the viewer"
	}
	return "listening on " + c.Service.BusSocket()
}

// watch is the bus's own loop: it goes on while the server can serve, and ends the process when the server cannot, so
// that the supervisor starts a new one on the same store.
func watch(ctx context.Context, server *Server, turn func()) error {
	t := time.NewTicker(turnPeriod)
	defer t.Stop()
	for {
		if err := server.Healthy(); err != nil {
			return fmt.Errorf("bus: %w", err)
		}
		turn()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
