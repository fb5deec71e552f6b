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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// headerTimeout bounds the TLS handshake and the reading of a request's header: who writes them
	// byte by byte is gone after it.
	headerTimeout = 10 * time.Second
	// writeTimeout bounds the writing of what no handler writes, such as an error; handlers set their own.
	writeTimeout = time.Minute
	// keepAlive is how long a connection may wait for its next request; as the kubelet's.
	keepAlive = 90 * time.Second
	// maxHeader is the kubelet's and the API server's. The request line counts too, and has the command of an exec.
	maxHeader = 1 << 20
	// listenRetry is the pause before an address that could not be opened is tried again.
	listenRetry = time.Second
	// unauthenticatedStreams is how many requests one HTTP/2 connection may carry at one time whose client
	// brought no certificate that is known, authenticatedStreams how many another may.
	unauthenticatedStreams = 8
	authenticatedStreams   = 250
	// closedLogPeriod is how often it is logged that connections are closed for their number.
	closedLogPeriod = 10 * time.Second
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
			Help: "Connections closed to make room for new ones, by the limit that was reached: address, unauthenticated or " +
				"connections.",
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
	// Certified reports whether a client's certificate is one that authenticates it; nil knows none.
	Certified func(*tls.ConnectionState) bool
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
	server := s.server()
	if s.TLS != nil {
		config, err := s.TLS()
		if err != nil {
			return err
		}
		server.TLSConfig = config
		if err := s.setHTTP2(server); err != nil {
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
	return s.serveOn(ctx, server, listener)
}

func (s *Server) server() *http.Server {
	return &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       keepAlive,
		MaxHeaderBytes:    maxHeader,
		// "OPTIONS *" is for the handler to refuse, like all else
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), // strangers must not fill the log
		ConnState: func(c net.Conn, state http.ConnState) {
			follow(c, state)
			if state == http.StateActive {
				s.recognize(c)
			}
		},
		ConnContext: func(ctx context.Context,
			c net.Conn) context.Context {
			return context.WithValue(ctx, key{}, under(c))
		},
	}
}

// recognize looks at the client certificate of a connection whose handshake is done, once, and reports whether
// the caller is authenticated.
func (s *Server) recognize(c net.Conn) bool {
	in := under(c)
	if in == nil {
		return false
	}
	if secure, ok := c.(*tls.Conn); ok && s.Certified != nil && !in.looked.Swap(true) {
		if state := secure.ConnectionState(); len(state.PeerCertificates) > 0 && s.Certified(&state) {
			in.owner.authenticate(in)
		}
	}
	return in.authenticated.Load()
}

// setHTTP2 has HTTP/2 spoken with few streams on a connection whose client is not known: each of them is a
// request that has to be authenticated. A server tells a client the number once, at the beginning.
//
//nolint:staticcheck // SA1019: net/http has one number of streams for all connections
func (s *Server) setHTTP2(server *http.Server) error {
	few, many := &http2.Server{MaxConcurrentStreams: unauthenticatedStreams}, &http2.Server{
		MaxConcurrentStreams: authenticatedStreams,
	}
	if err := errors.Join(http2.ConfigureServer(server, few), http2.ConfigureServer(server, many)); err != nil {
		return err
	}
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn,
		http.Handler){http2.NextProtoTLS: func(hs *http.Server, c *tls.Conn, h http.Handler) {
		as := few
		if s.recognize(c) {
			as = many
		}
		options := &http2.ServeConnOpts{Handler: h, BaseConfig: hs}
		// net/http hands the connection's context over in this way.
		if base, ok := h.(interface{ BaseContext() context.Context }); ok {
			options.Context = base.BaseContext()
		}
		as.ServeConn(c, options)
	}}
	return nil
}

// closed counts and logs that a connection was closed for the number of them.
func (s *Server) closed() func(address netip.Prefix, reason string, refused bool) {
	logged := map[string]*rate.Sometimes{}
	for _, reason := range []string{reasonAddress, reasonUnauthenticated, reasonConnections} {
		logged[reason] = &rate.Sometimes{First: 1, Interval: closedLogPeriod}
	}
	return func(address netip.Prefix, reason string, refused bool) {
		if refused {
			s.Metrics.refused.WithLabelValues(s.Name).Inc()
		} else {
			s.Metrics.evicted.WithLabelValues(s.Name, reason).Inc()
		}
		logged[reason].Do(func() {
			s.Log.Warn("port has too many connections, one is closed", "server", s.Name,
				logkey.Address, address.String(),
				"limit", reason, "new", refused)
		})
	}
}

// serveOn serves on a listener that is open, and closes it.
func (s *Server) serveOn(ctx context.Context, server *http.Server, listener net.Listener) error {
	guarded := limit(listener, s.Limits, s.closed())
	// Streams are closed last: the HTTP server does not know them any more.
	reaping, stop := context.WithCancel(context.WithoutCancel(ctx))
	reaped := make(chan struct{})
	go func() { defer close(reaped); guarded.reap(reaping) }()
	defer func() { stop(); <-reaped }()
	served := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			served <- server.ServeTLS(guarded, "", "")
			return
		}
		served <- server.Serve(guarded)
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		err = server.Close() // who reads so slowly gets half an answer
		if err != nil {
			s.Log.Debug("server closed", "server", s.Name, logkey.Err, err)
		}
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
