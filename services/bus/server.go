package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/internal/permissions"
	client "github.com/microlet/microlet/services/internal/bus"
)

// Limits of the server. They are for one node's services, of which each has a few connections at most.
const (
	maxConnections = 256
	// maxPending is what may wait for one client before its connection is cut: four of the largest entries.
	maxPending    = 4 * subject.MaxPayload
	writeDeadline = 10 * time.Second
	// storeHeadroom is what the store may hold beside the streams' own bounds.
	storeHeadroom = 64 << 20
	// JetStream takes 75 % of the machine's memory as its limit unless told; no stream lives in memory.
	maxMemory = 1 << 20
	// syncInterval is long: fsync does nothing on a tmpfs, and a store that a power cut damages is
	// emptied at the boot that follows.
	syncInterval = time.Hour
	startTimeout = 20 * time.Second
)

// ServerOptions are the server's, without its heartbeat and sockets.
type ServerOptions struct {
	// Address is host:port; the host must be a loopback address. Port 0 takes a free one.
	Address string
	// StoreDir is the folder of JetStream's file store.
	StoreDir string
	// NKeyDir is the folder with the public key of each role.
	NKeyDir string
	// Log is where the server's own log goes; slog.Default() when nil.
	Log *slog.Logger

	// Gone is told, from one goroutine, of each service's connection that was lost; it must not
	// block. Nil hears nothing.
	Gone func(r role.Role, replica string)

	bootIDFile string // kernelBootID but in tests
}

// Server is a running NATS server with the contract's streams.
type Server struct {
	ns   *server.Server
	log  *slog.Logger
	gone *goneWatch // nil without ServerOptions.Gone
}

var _ nats.InProcessConnProvider = (*Server)(nil)

// StartServer starts the server, and returns when it takes connections and has every bucket and stream
// of the contract. The caller closes it.
func StartServer(ctx context.Context, o ServerOptions) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.bootIDFile == "" {
		o.bootIDFile = kernelBootID
	}
	opts, err := o.server()
	if err != nil {
		return nil, err
	}
	admin, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("admin identity: %w", err)
	}
	defer admin.Wipe()
	system, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("system identity: %w", err)
	}
	defer system.Wipe()
	var roles map[string]role.Role
	if opts.Nkeys, roles, err = users(o.NKeyDir, admin); err != nil {
		return nil, err
	}
	if err := addSystem(opts, system); err != nil {
		return nil, err
	}
	emptied, err := prepareStore(o.StoreDir, o.bootIDFile)
	if err != nil {
		return nil, err
	}
	if emptied {
		o.Log.Info("emptied the store of an earlier boot", "dir", o.StoreDir)
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("nats server: %w", err)
	}
	ns.SetLoggerV2(&serverLog{o.Log}, false, false, false)
	s := &Server{ns: ns, log: o.Log}
	if err := s.prepare(ctx, admin); err != nil {
		s.Close()
		return nil, err
	}
	if o.Gone != nil {
		if err := s.watchGone(system, roles, o.Gone); err != nil {
			s.Close()
			return nil, err
		}
	}
	if err := s.listen(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// addSystem gives the server a system account that can be signed in to from inside this process only.
func addSystem(opts *server.Options, key nkeys.KeyPair) error {
	public, err := key.PublicKey()
	if err != nil {
		return fmt.Errorf("system identity: %w", err)
	}
	// With a system account and no authorization block the server lets everybody in, keyless, as a user
	// of the other account. Only a configuration file's text can tell it that there is a block.
	if err := opts.ProcessConfigString("authorization { timeout: 2 }"); err != nil {
		return fmt.Errorf("require a key of every connection: %w", err)
	}
	account := server.NewAccount(server.DEFAULT_SYSTEM_ACCOUNT)
	opts.Accounts, opts.SystemAccount = []*server.Account{account}, account.Name
	opts.Nkeys = append(opts.Nkeys, &server.NkeyUser{
		Nkey: public, Account: account, AllowedConnectionTypes: map[string]struct{}{jwt.ConnectionTypeInProcess: {}},
	})
	return nil
}

// prepare starts the server for this process alone, and makes the streams.
func (s *Server) prepare(ctx context.Context, admin nkeys.KeyPair) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.ns.Start()
	if !s.ns.ReadyForConnections(startTimeout) || !s.ns.JetStreamEnabled() {
		return errors.New("the nats server does not come up; its log above says why, mostly a store that cannot be written")
	}
	key, err := admin.PublicKey()
	if err != nil {
		return fmt.Errorf("admin identity: %w", err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(s.ns), nats.Nkey(key, admin.Sign), nats.Name("admin"), nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("admin connection: %w", err)
	}
	defer nc.Close()
	return ensureStreams(ctx, nc)
}

// listen lets the other processes in: only now, so that none finds a stream missing, and none comes and
// goes unnoticed.
func (s *Server) listen() error {
	s.ns.AcceptLoop(make(chan struct{}))
	if s.ns.Addr() == nil {
		return errors.New("the nats server does not listen; its log above says why, mostly a port in use")
	}
	return nil
}

// InProcessConn is a connection for a service in the same process. It signs in like any other.
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// Address is where the server listens, host:port.
func (s *Server) Address() string {
	if addr := s.ns.Addr(); addr != nil {
		return addr.String()
	}
	return ""
}

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
	s.gone.close()
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

func (o ServerOptions) server() (*server.Options, error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return nil, fmt.Errorf("bus address %q: give it as host:port, e.g. 127.0.0.1:4222: %w", o.Address, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("bus address %q: the bus is for this node's services only; use a loopback address such as 127.0.0.1", o.Address)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("bus address %q: port: %w; use 1 to 65535, or 0 for any", o.Address, err)
	}
	if o.StoreDir == "" {
		return nil, errors.New("store folder: it is empty")
	}
	opts := &server.Options{
		ServerName: "microlet", Host: host, Port: int(number), DontListen: true, // listen does it
		NoSigs: true, MaxTracedMsgLen: 64, DisableJetStreamBanner: true,
		MaxConn: maxConnections, MaxPayload: subject.MaxPayload, MaxPending: maxPending, WriteDeadline: writeDeadline,
		AuthTimeout: 5,
		JetStream:   true, StoreDir: o.StoreDir, SyncInterval: syncInterval,
		JetStreamMaxMemory: maxMemory, JetStreamMaxStore: storeHeadroom + subject.OutboxMaxBytes,
	}
	if number == 0 {
		opts.Port = server.RANDOM_PORT
	}
	for _, b := range subject.Buckets() {
		opts.JetStreamMaxStore += b.MaxBytes
	}
	return opts, nil
}

// users are the identities that may sign in: every role with what the contract grants it, and the
// admin, which may do everything but can come from inside this process only. It also returns whose
// each key is.
func users(dir string, admin nkeys.KeyPair) ([]*server.NkeyUser, map[string]role.Role, error) {
	key, err := admin.PublicKey()
	if err != nil {
		return nil, nil, fmt.Errorf("admin identity: %w", err)
	}
	all := []*server.NkeyUser{{Nkey: key, AllowedConnectionTypes: map[string]struct{}{jwt.ConnectionTypeInProcess: {}}}}
	owner := map[string]role.Role{}
	for _, r := range role.All() {
		path := client.PublicFile(dir, r)
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("nkey of %s: %w; \"microlet up\" writes it before it starts the bus", r, err)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("nkey of %s: %w", r, err)
		}
		key := strings.TrimSpace(string(raw))
		if !nkeys.IsValidPublicUserKey(key) {
			return nil, nil, fmt.Errorf("nkey of %s: %s does not hold a user's public key; remove it and its seed, and let \"microlet up\" write both again", r, path)
		}
		if other, taken := owner[key]; taken {
			return nil, nil, fmt.Errorf("nkey of %s: %s holds the key of %s; remove it and its seed, and let \"microlet up\" write both again", r, path, other)
		}
		owner[key] = r
		p, err := permissions.For(r)
		if err != nil {
			return nil, nil, fmt.Errorf("contract: %w", err)
		}
		all = append(all, &server.NkeyUser{
			Nkey: key, Permissions: p.Server(),
			AllowedConnectionTypes: map[string]struct{}{jwt.ConnectionTypeStandard: {}, jwt.ConnectionTypeInProcess: {}},
		})
	}
	return all, owner, nil
}

// serverLog gives the server's log to slog.
type serverLog struct{ log *slog.Logger }

var _ server.Logger = (*serverLog)(nil)

func (l *serverLog) Noticef(format string, v ...any) {
	l.log.Debug("nats server", "message", fmt.Sprintf(format, v...))
}
func (l *serverLog) Warnf(format string, v ...any) {
	l.log.Warn("nats server", "message", fmt.Sprintf(format, v...))
}
func (l *serverLog) Errorf(format string, v ...any) {
	l.log.Error("nats server", "message", fmt.Sprintf(format, v...))
}
func (l *serverLog) Fatalf(format string, v ...any) {
	l.log.Error("nats server", "message", fmt.Sprintf(format, v...), "fatal", true)
}
func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}
