package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/run"
)

// Times of the connection. They are short because the bus is on the same machine: it answers
// within a millisecond, or it is gone or stopped.
const (
	reconnectMin   = 50 * time.Millisecond
	reconnectMax   = time.Second
	connectTimeout = 2 * time.Second
	// A bus that is stopped keeps its sockets open; two unanswered pings show that.
	pingInterval = 2 * time.Second
	maxPings     = 2
	// writeTimeout bounds a write to a stopped bus with a full socket buffer.
	writeTimeout = 5 * time.Second
	closeTimeout = 500 * time.Millisecond
)

// ErrNotConnected is returned for what cannot wait for the bus.
var ErrNotConnected = errors.New("not connected to the bus")

// Client is a service's connection to the bus. Its methods may be called from any goroutine, before
// and while Run runs.
type Client struct {
	opts    Options
	log     *slog.Logger
	metrics *metrics
	key     string // public nkey

	mu        sync.Mutex
	group     *run.Group    // nil before Run
	nc        *nats.Conn    // nil before Run
	ended     bool          // Run is about to return
	session   *session      // nil while there is no connection
	arrived   chan struct{} // closed and replaced when session is set
	sessions  uint64
	onConnect []func()
	subs      []subscriber
	tasks     []task // watches and writers
	writers   map[string]*Writer
	watches   map[*watch]struct{}
}

// session is one connection, from its handshake to its loss.
type session struct {
	id   uint64
	nc   *nats.Conn
	js   jetstream.JetStream
	gone chan struct{} // closed when the connection is lost
}

type subscriber struct {
	subject string
	handler func(subject string, data []byte)
}

type task struct {
	name string
	f    func(context.Context) error
}

// New returns a client that connects once Run runs. It fails for options that can never work, such
// as a seed file that cannot be read, and does not wait for the bus.
func New(opts Options) (*Client, error) {
	if err := opts.complete(); err != nil {
		return nil, fmt.Errorf("bus client: %w", err)
	}
	kp, err := readSeed(opts.SeedFile)
	if err != nil {
		return nil, fmt.Errorf("bus client: %w", err)
	}
	defer kp.Wipe()
	key, err := kp.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("bus client: nkey seed %s: %w", opts.SeedFile, err)
	}
	if !nkeys.IsValidPublicUserKey(key) {
		return nil,
			fmt.Errorf("bus client: nkey seed %s: not a user's; remove it and let \"microlet up\" write it again",
				opts.SeedFile)
	}
	m, err := newMetrics(opts.Metrics)
	if err != nil {
		return nil, err
	}
	return &Client{
		opts: opts, log: opts.Log.With(logkey.Component, "bus"), metrics: m, key: key,
		arrived: make(chan struct{}), writers: map[string]*Writer{}, watches: map[*watch]struct{}{},
	}, nil
}

// Writer returns how this client signs its entries, "<service>.<replica>".
func (c *Client) Writer() string { return subject.Writer(c.opts.Role, c.opts.Replica) }

// Role returns the role that this client signs in as.
func (c *Client) Role() role.Role { return c.opts.Role }

// Register adds collectors to those of the client, for what is built on it.
func (c *Client) Register(collectors ...prometheus.Collector) error {
	if c.opts.Metrics == nil {
		return nil
	}
	var errs []error
	for _, col := range collectors {
		errs = append(errs, c.opts.Metrics.Register(col))
	}
	return errors.Join(errs...)
}

// Run connects, and keeps every watch, writer and subscription going until ctx ends. It returns nil
// then, after all of them have ended. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	group, _ := run.New(ctx)
	c.mu.Lock()
	if c.group != nil {
		c.mu.Unlock()
		return errors.New("bus client: run was called twice")
	}
	c.group = group
	c.mu.Unlock()

	nc, err := nats.Connect(busURL, c.options()...)
	if err != nil {
		return fmt.Errorf("connect to the bus: %w", err)
	}
	c.mu.Lock()
	c.nc = nc // from here on, Subscribe and start do it themselves
	tasks, subs := c.tasks, c.subs
	c.mu.Unlock()
	for _, s := range subs {
		if err := c.subscribe(nc, s); err != nil {
			nc.Close()
			return err
		}
	}
	group.Go("connection", func(ctx context.Context) error {
		<-ctx.Done()
		// Nothing is started any more from here on, while this task still keeps the group waiting.
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		// What was published last, such as a final put, still goes out.
		_ = nc.FlushTimeout(closeTimeout)
		return nil
	})
	for _, t := range tasks {
		group.Go(t.name, t.f)
	}
	err = group.Wait()
	nc.Close()
	c.lost()
	return err
}

func (c *Client) options() []nats.Option {
	opts := []nats.Option{
		nats.Name(c.Writer()),
		nats.SkipHostLookup(), // the host of busURL is none, and a name server that hangs would hold each connect
		nats.Nkey(c.key, c.sign),
		nats.CustomInboxPrefix(subject.Inbox(c.opts.Role)),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.FlusherTimeout(writeTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // the bus may have read its keys before they were written
		nats.IgnoreDiscoveredServers(),
		nats.ReconnectBufSize(-1), // nothing is kept for later but by writers, which know what is newest
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ConnectHandler(func(nc *nats.Conn) { c.connected(nc, true) }),
		nats.ReconnectHandler(func(nc *nats.Conn) { c.connected(nc, false) }),
		nats.DisconnectErrHandler(c.disconnected),
		nats.ErrorHandler(c.asyncError),
	}
	if c.opts.InProcess != nil {
		return append(opts, nats.InProcessServer(c.opts.InProcess))
	}
	return append(opts, nats.SetCustomDialer(&dialer{
		socket: c.opts.Socket, rules: c.opts.Peers, log: c.log, strangers: c.metrics.strangers,
	}))
}

// sign answers the bus's challenge. The seed is read each time, so that it need not stay in memory.
func (c *Client) sign(nonce []byte) ([]byte, error) {
	kp, err := readSeed(c.opts.SeedFile)
	if err != nil {
		return nil, err
	}
	defer kp.Wipe()
	return kp.Sign(nonce)
}

// reconnectDelay doubles from 50 ms to 1 s with jitter: all services lose the bus at the same moment.
func reconnectDelay(attempts int) time.Duration { return backoff(attempts, reconnectMin, reconnectMax) }

func backoff(attempts int, shortest, longest time.Duration) time.Duration {
	d := shortest << min(max(attempts-1, 0), 10)
	d = min(d, longest)
	return d/2 + rand.N(d/2+1)
}

func (c *Client) connected(nc *nats.Conn, first bool) {
	js, err := jetstream.New(nc)
	if err != nil {
		// It fails for options only, of which there are none.
		c.log.Error("cannot use JetStream", logkey.Err, err)
		return
	}
	c.mu.Lock()
	c.closeSession()
	c.sessions++
	if c.sessions > 1 {
		c.metrics.reconnects.Inc()
	}
	c.session = &session{id: c.sessions, nc: nc, js: js, gone: make(chan struct{})}
	close(c.arrived)
	c.arrived = make(chan struct{})
	hooks := c.onConnect[:len(c.onConnect):len(c.onConnect)]
	c.mu.Unlock()
	c.metrics.connected.Set(1)
	c.log.Info("connected to the bus", "first", first, "session", c.sessions)
	for _, hook := range hooks {
		hook()
	}
}

func (c *Client) disconnected(_ *nats.Conn, err error) {
	if c.lost() {
		c.metrics.disconnects.Inc()
		c.log.Warn("lost the bus", logkey.Err, err)
	}
}

func (c *Client) lost() bool {
	c.metrics.connected.Set(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeSession()
}

func (c *Client) closeSession() bool {
	if c.session == nil {
		return false
	}
	close(c.session.gone)
	c.session = nil
	return true
}

// wait returns the first session younger than the one with id after; nil when ctx ended before.
func (c *Client) wait(ctx context.Context, after uint64) *session {
	for {
		c.mu.Lock()
		s, arrived := c.session, c.arrived
		c.mu.Unlock()
		if s != nil && s.id > after {
			return s
		}
		select {
		case <-ctx.Done():
			return nil
		case <-arrived:
		}
	}
}

// current is the session of the moment, nil while there is none.
func (c *Client) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// Connected reports whether there is a connection to the bus now.
func (c *Client) Connected() bool { return c.current() != nil }

// ServerID names the process of the bus that there is a connection to; "" while there is none. A restarted bus has
// another.
func (c *Client) ServerID() string {
	s := c.current()
	if s == nil {
		return ""
	}
	return s.nc.ConnectedServerId()
}

// OnConnect has f called after each connect and reconnect, one after the other; f must not block.
// It is called once at once if there is a connection already.
func (c *Client) OnConnect(f func()) {
	c.mu.Lock()
	c.onConnect = append(c.onConnect, f)
	connected := c.session != nil
	c.mu.Unlock()
	if connected {
		f()
	}
}

// Publish sends a hint: nothing stores it, and it needs no listener. It returns ErrNotConnected while the bus is away.
// A subject that the service may not publish is reported later, in the log and in the metric microlet_bus_denied_total,
// since the bus answers nothing to a hint.
func (c *Client) Publish(subj string, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("publish %s: %w", subj, err)
	}
	s := c.current()
	if s == nil {
		return fmt.Errorf("publish %s: %w", subj, ErrNotConnected)
	}
	if err := s.nc.Publish(subj, data); err != nil {
		return fmt.Errorf("publish %s: %w", subj, err)
	}
	return nil
}

// Subscribe has h called for each message on subj, one after the other, on this connection and every
// later one. What is published while the bus is away is not heard.
func (c *Client) Subscribe(subj string, h func(subject string, data []byte)) {
	s := subscriber{subj, h}
	c.mu.Lock()
	c.subs = append(c.subs, s)
	nc := c.nc
	c.mu.Unlock()
	if nc == nil {
		return // Run does it
	}
	if err := c.subscribe(nc, s); err != nil {
		c.log.Error("cannot subscribe", "subject", subj, logkey.Err, err)
	}
}

func (c *Client) subscribe(nc *nats.Conn, s subscriber) error {
	_, err := nc.Subscribe(s.subject, func(m *nats.Msg) { s.handler(m.Subject, m.Data) })
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("subscribe to %s: %w", s.subject, err)
	}
	return nil
}

// start makes f a part of Run, now if it runs already.
func (c *Client) start(name string, f func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tasks = append(c.tasks, task{name, f})
	if c.nc != nil && !c.ended {
		c.group.Go(name, f)
	}
}
