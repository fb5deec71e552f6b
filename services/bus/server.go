package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/internal/accounts"
	"github.com/microlet/microlet/services/internal/logkey"
)

// Limits of the server. They are for one node's services, of which each has a few connections at most.
const (
	// maxSubscriptions is for one connection: a service has a few dozen.
	maxSubscriptions = 1024
	// maxPending is what may wait for one client before its connection is cut: more than the largest entry.
	maxPending    = subject.MaxPayload + subject.MaxPayload/2
	writeDeadline = 10 * time.Second
	// JetStream takes 75 % of the machine's memory as its limit by default; no stream lives in memory.
	maxMemory = 1 << 20
	// syncInterval is long: fsync does nothing on a tmpfs, and a store that a power cut damages is
	// emptied at the boot that follows.
	syncInterval = time.Hour
	startTimeout = 20 * time.Second
	// authTimeout is how long a connection may take to sign in.
	authTimeout = 5 * time.Second
)

// ServerOptions are the server's, without its heartbeat and sockets.
type ServerOptions struct {
	// StoreDir is the folder of JetStream's file store.
	StoreDir string
	// NKeyDir is the folder with the public key of each role.
	NKeyDir string
	// View, if not nil, opens a loopback port for who looks at the bus.
	View *View
	// Log is where the server's own log goes; slog.Default() when nil.
	Log *slog.Logger

	// Disconnected is called, from one goroutine, for each service's connection that was lost; it must not
	// block. Nil hears nothing.
	Disconnected func(r role.Role, replica string)

	bootIDFile string // kernelBootID but in tests
}

// Server is a running NATS server with the contract's streams. It listens nowhere by itself: Serve gives it
// connections.
type Server struct {
	ns          *server.Server
	log         *slog.Logger
	disconnects *disconnectWatch     // nil without ServerOptions.Disconnected
	owners      map[string]role.Role // the role of each service's key
}

var _ nats.InProcessConnProvider = (*Server)(nil)

// StartServer starts the server, and returns when it has every bucket and stream of the contract. The caller
// closes it.
func StartServer(ctx context.Context, o ServerOptions) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.bootIDFile == "" {
		o.bootIDFile = kernelBootID
	}
	if o.StoreDir == "" {
		return nil, errors.New("store folder: it is empty")
	}
	ids, err := newIdentities(o.NKeyDir, o.View != nil)
	if err != nil {
		return nil, err
	}
	defer ids.wipe()
	opts, err := options(o, ids)
	if err != nil {
		return nil, err
	}
	emptied, err := prepareStore(o.StoreDir, o.bootIDFile)
	if err != nil {
		return nil, err
	}
	if emptied {
		o.Log.Info("emptied the store of an earlier boot or version", logkey.Dir, o.StoreDir)
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("nats server: %w", err)
	}
	ns.SetLoggerV2(&serverLog{o.Log}, false, false, false)
	s := &Server{ns: ns, log: o.Log, owners: ids.owners}
	if err := s.prepare(ctx, ids, o.Disconnected); err != nil {
		s.Close()
		return nil, err
	}
	if o.View != nil {
		// Only now, as with the services, so that no client finds a stream missing.
		if err := s.listen(); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// options are nats-server's.
func options(o ServerOptions, ids *identities) (*server.Options, error) {
	opts := &server.Options{
		ServerName: "microlet", DontListen: true,
		NoSigs: true, MaxTracedMsgLen: 64, DisableJetStreamBanner: true,
		MaxSubs: maxSubscriptions, MaxPayload: subject.MaxPayload, MaxPending: maxPending, WriteDeadline: writeDeadline,
		AuthTimeout: authTimeout.Seconds(),
		JetStream:   true, StoreDir: o.StoreDir, SyncInterval: syncInterval,
		JetStreamMaxMemory: maxMemory, JetStreamMaxStore: accounts.StoreBytes(),
	}
	text, err := accounts.Config(ids.public)
	if err != nil {
		return nil, err
	}
	if err := opts.ProcessConfigString(text); err != nil {
		return nil, fmt.Errorf("accounts of the contract: %w", err)
	}
	if o.View != nil {
		if err := o.View.listenOn(opts); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// prepare starts the server for this process alone, makes the streams, and begins to watch over connections.
func (s *Server) prepare(ctx context.Context, ids *identities, gone func(role.Role, string)) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.ns.Start()
	if !s.ns.ReadyForConnections(startTimeout) || !s.ns.JetStreamEnabled() {
		return errors.New(
			"the nats server does not come up; its log above says why, mostly a store that cannot be written",
		)
	}
	for r, admin := range ids.admins {
		if err := s.makeStreams(ctx, r, admin); err != nil {
			return err
		}
	}
	if gone == nil {
		return nil
	}
	return s.watchDisconnects(ids.system, ids.owners, gone)
}

// makeStreams makes those of a role's account.
func (s *Server) makeStreams(ctx context.Context, r role.Role, admin signer) error {
	nc, err := nats.Connect("", nats.InProcessServer(s.ns), admin.option(), nats.Name("admin of "+string(r)),
		nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("admin connection for %s: %w", r, err)
	}
	defer nc.Close()
	return ensureStreams(ctx, nc, r)
}

// listen opens the port of ServerOptions.View.
func (s *Server) listen() error {
	s.ns.AcceptLoop(make(chan struct{}))
	if s.ns.Addr() == nil {
		return errors.New(
			"the port for looking at the bus cannot be opened; the log above says why, mostly a port in use",
		)
	}
	return nil
}

// ViewAddress is where the port for looking at the bus is, host:port; empty without one.
func (s *Server) ViewAddress() string {
	if addr := s.ns.Addr(); addr != nil {
		return addr.String()
	}
	return ""
}

// InProcessConn is a connection for a service in the same process. It signs in like any other.
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// Healthy returns why the server could not serve now; nil when it can.
func (s *Server) Healthy() error {
	if !s.ns.Running() {
		return errors.New("the nats server has stopped")
	}
	if !s.ns.JetStreamEnabled() {
		return errors.New("JetStream is disabled: its store failed, see the log")
	}
	return nil
}

// Connections is the number of clients.
func (s *Server) Connections() int { return s.ns.NumClients() }

// Close stops the server and waits for it.
func (s *Server) Close() {
	s.disconnects.close()
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

// serverLog gives the server's log to slog.
type serverLog struct{ log *slog.Logger }

var _ server.Logger = (*serverLog)(nil)

func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug("nats server", logkey.Message, fmt.Sprintf(format, v...))
}
func (l *serverLog) Warnf(format string, v ...any) {
	l.log.Warn("nats server", logkey.Message, fmt.Sprintf(format, v...))
}
func (l *serverLog) Errorf(format string, v ...any) {
	l.log.Error("nats server", logkey.Message, fmt.Sprintf(format, v...))
}
func (l *serverLog) Fatalf(format string, v ...any) {
	l.log.Error("nats server", logkey.Message, fmt.Sprintf(format, v...), "fatal", true)
}
func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}
