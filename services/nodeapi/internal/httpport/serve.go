package httpport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// headerTimeout bounds the TLS handshake and the reading of a request's header: who writes them
	// byte by byte is gone after it.
	headerTimeout = 10 * time.Second
	// keepAlive is how long a connection may wait for its next request; as the kubelet's.
	keepAlive = 90 * time.Second
	// listenRetry is the pause before an address that could not be opened is tried again.
	listenRetry = time.Second
	// closedLogPeriod is how often it is logged that connections are closed for their number.
	closedLogPeriod = 10 * time.Second
	// maxFrame bounds a frame of HTTP/2, for which memory is taken before it arrives. It is the least that a server may
	// allow; net/http allows 1 MiB.
	maxFrame = 16 << 10
	// stopGrace is how long answers under way may take once the service stops.
	stopGrace = time.Second
)

// Metrics are those of all ports.
type Metrics struct {
	refused *prometheus.CounterVec
	evicted *prometheus.CounterVec
	open    *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodeapi_connections_refused_total",
			Help: "Connections closed as they came, because there were too many that are in use.",
		}, []string{"server"}),
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodeapi_connections_evicted_total",
			Help: "Connections closed, most to make room for new ones, by the limit that was reached: address, " +
				"unauthenticated, connections, user, memory or handshake.",
		}, []string{"server", "reason"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "microlet_nodeapi_port_open", Help: "1 while the port is open, 0 while it is tried again.",
		}, []string{"server"}),
	}
	r.MustRegister(m.refused, m.evicted, m.open)
	return m
}

// Server is one port.
type Server struct {
	// Name is of its log lines and metrics.
	Name    string
	Address string // host:port
	Handler http.Handler
	// TLS returns the configuration once it can be had; nil serves without.
	TLS func() (*tls.Config, error)
	// Certified returns the user whom a client's certificate authenticates, if it does; nil knows none.
	Certified func(*tls.ConnectionState) (user string, ok bool)
	Limits
	Log     *slog.Logger
	Metrics *Metrics
	// Listening, if not nil, is called with the address when the port is open.
	Listening func(net.Addr)
}

// Run serves until the context ends. A port that cannot be opened, or a certificate that cannot be
// read, is logged once and tried again: it may be taken for a moment by who served there before.
func (s *Server) Run(ctx context.Context) error {
	logged := ""
	for {
		err := s.serve(ctx)
		s.Metrics.open.WithLabelValues(s.Name).Set(0)
		if ctx.Err() != nil {
			return nil
		}
		if err.Error() != logged {
			logged = err.Error()
			s.Log.Error("port is not open; it is tried again", "server", s.Name, logkey.Address, s.Address,
				logkey.Err, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenRetry):
		}
	}
}

func (s *Server) serve(ctx context.Context) error {
	var config *tls.Config
	if s.TLS != nil {
		var err error
		if config, err = s.TLS(); err != nil {
			return err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("open port: %w", err)
	}
	s.Metrics.open.WithLabelValues(s.Name).Set(1)
	s.Log.Info("port is open", "server", s.Name, logkey.Address, listener.Addr().String())
	if s.Listening != nil {
		s.Listening(listener.Addr())
	}
	return s.serveOn(ctx, config, listener)
}

func (s *Server) server(may allowance) *http.Server {
	return &http.Server{
		Handler:           charged(s.Handler),
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      may.write,
		IdleTimeout:       keepAlive,
		MaxHeaderBytes:    may.header,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: may.streams, MaxReadFrameSize: maxFrame},
		// "OPTIONS *" is for the handler to refuse, like all else
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), // strangers must not fill the log
		ConnState:                    follow,
		ConnContext: func(ctx context.Context,
			c net.Conn) context.Context {
			return context.WithValue(ctx, key{}, under(c))
		},
	}
}

// closed counts and logs that a connection was closed for the number of them.
func (s *Server) closed() func(address netip.Prefix, reason string, refused bool) {
	logged := map[string]*rate.Sometimes{}
	for _, reason := range []string{reasonAddress, reasonUnauthenticated, reasonConnections, reasonUser,
		reasonMemory, reasonHandshake} {
		logged[reason] = &rate.Sometimes{First: 1, Interval: closedLogPeriod}
	}
	return func(address netip.Prefix, reason string, refused bool) {
		if refused {
			s.Metrics.refused.WithLabelValues(s.Name).Inc()
		} else {
			s.Metrics.evicted.WithLabelValues(s.Name, reason).Inc()
		}
		logged[reason].Do(func() {
			s.Log.Warn("port has too many connections, or they take or send too much; one is closed", "server", s.Name,
				logkey.Address, address.String(),
				"limit", reason, "new", refused)
		})
	}
}

// serveOn serves on a listener that is open, and closes it. Without a configuration of TLS no caller is known.
func (s *Server) serveOn(ctx context.Context, config *tls.Config, listener net.Listener) error {
	guarded := limit(listener, s.Limits, s.closed())
	// Streams are closed last: the HTTP server does not know them any more.
	reaping, stop := context.WithCancel(context.WithoutCancel(ctx))
	reaped := make(chan struct{})
	go func() { defer close(reaped); guarded.reap(reaping) }()
	defer func() { stop(); <-reaped }()
	to := doors{strangers: newDoor(guarded.Addr()), known: newDoor(guarded.Addr())}
	servers := map[*door]*http.Server{to.strangers: s.server(strangers), to.known: s.server(known)}
	sharing, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := make(chan struct{})
	go func() { defer close(shared); s.share(sharing, guarded, config, to) }()
	served := make(chan error, len(servers))
	for door, server := range servers {
		go func() { served <- server.Serve(door) }()
	}
	var err error
	select {
	case err = <-served:
		served <- err
	case <-ctx.Done():
	}
	cancel()
	_ = guarded.Close() // what it accepted is served on
	var ends sync.WaitGroup
	for _, server := range servers {
		ends.Go(func() { s.end(ctx, server) })
	}
	ends.Wait()
	<-shared
	for range servers {
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = fmt.Errorf("serve: %w", end)
		}
	}
	return err
}

// end lets a server finish what is under way.
func (s *Server) end(ctx context.Context, server *http.Server) {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = server.Close() // who reads so slowly gets half an answer
	}
	if err != nil {
		s.Log.Debug("server closed", "server", s.Name, logkey.Err, err)
	}
}
