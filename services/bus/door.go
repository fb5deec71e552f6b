package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/microlet/microlet/services/bus/internal/protocol"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// copyBuffer is small because most messages are.
	copyBuffer = 8 << 10
	// writeTimeout is how long a client may take to read what is written to it, as in the server (write_deadline).
	writeTimeout = 10 * time.Second
	// refusalLogPeriod is how often refusals of one user are logged. All are counted.
	refusalLogPeriod = 10 * time.Second

	// paceRate is how much a user's clients may say in a second, and paceBurst at once, of which an operation is its bytes
	// and paceCost. It is several times what the prober of a node with many pods says. What comes faster waits: else one
	// service could have the bus, and all who read what it says, compute for nothing else.
	paceRate  = 8 << 20
	paceBurst = 32 << 20
	paceCost  = 2 << 10
)

// Door admits only the node's services: it asks the kernel which process has connected to the bus's unix socket before
// the NATS server reads a byte of it. A service signs in with its own key only: another's is worth nothing to the user
// that has read it.
type Door struct {
	server *Server
	rules  unixgrpc.Rules
	log    *slog.Logger

	refused *prometheus.CounterVec

	mu     sync.Mutex
	logged map[int]time.Time // when a refusal of this UID was logged last
	paces  map[int]*rate.Limiter
}

// NewDoor returns the door of a server. Its counter of refusals goes to r, if that is not nil.
func NewDoor(s *Server, rules unixgrpc.Rules, r prometheus.Registerer) *Door {
	d := &Door{
		server: s, rules: rules, log: s.log, logged: map[int]time.Time{}, paces: map[int]*rate.Limiter{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_bus_refused_connections_total",
			Help: "Connections to the bus's socket that were refused because they are a stranger's.",
		}, []string{"reason"}),
	}
	if r != nil {
		r.MustRegister(d.refused)
	}
	return d
}

// Serve takes connections from the listener until the context ends, and then cuts all of them. It owns the
// listener.
func (d *Door) Serve(ctx context.Context, l net.Listener) error {
	group, _ := run.New(ctx)
	group.Go("close", func(ctx context.Context) error {
		<-ctx.Done()
		return l.Close()
	})
	group.Go("accept", func(ctx context.Context) error {
		for {
			conn, err := l.Accept()
			if ctx.Err() != nil {
				if err == nil {
					_ = conn.Close()
				}
				return nil
			}
			if temporary(err) {
				d.log.Warn("cannot accept a connection", logkey.Err, err)
				if pause.For(ctx, acceptPause) != nil {
					return nil
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("accept on %s: %w", l.Addr(), err)
			}
			group.Go("connection", func(ctx context.Context) error {
				d.take(ctx, conn)
				return nil
			})
		}
	})
	return group.Wait()
}

// take judges a connection and carries it until one of its ends, or the context, does.
func (d *Door) take(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	p, err := unixgrpc.Identify(conn, d.rules)
	if err != nil {
		d.refuse("unidentified", p, err.Error())
		return
	}
	if len(p.Roles) == 0 {
		d.refuse("stranger", p, p.String())
		return
	}
	inner, err := d.server.InProcessConn()
	if err != nil {
		d.log.Warn("the nats server takes no connection", logkey.Err, err)
		return
	}
	err = join(ctx, conn, inner, func(nkey string) error { return d.judge(p, nkey) }, d.pace(ctx, p))
	if errors.Is(err, errNotYours) {
		d.refuse("key", p, err.Error())
	} else if err != nil {
		d.log.Debug("a connection ended", logkey.UID, p.UID, logkey.PID, p.PID, logkey.Err, err)
	}
}

// pace returns what a client waits for before each operation. Root's do not: podsync says most of what there is.
func (d *Door) pace(ctx context.Context, p unixgrpc.Peer) func(size int) error {
	if p.UID == 0 {
		return func(int) error { return nil }
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	limit := d.paces[p.UID]
	if limit == nil {
		limit = rate.NewLimiter(paceRate, paceBurst)
		d.paces[p.UID] = limit
	}
	return func(size int) error { return limit.WaitN(ctx, min(size+paceCost, paceBurst)) }
}

// errNotYours is that a client signs in as another service than it is.
var errNotYours = errors.New("the key is another service's")

// judge says whether a peer may sign in with a key. Root may with each, since it reads them all. A key that is no
// service's is left to the server.
func (d *Door) judge(p unixgrpc.Peer, nkey string) error {
	owner, known := d.server.owners[nkey]
	if !known || p.Serves(owner) {
		return nil
	}
	return fmt.Errorf("%w: it signs in as %s", errNotYours, owner)
}

// join carries a client's connection to the server until either side ends, and returns why the client's did.
func join(ctx context.Context, client, server net.Conn, allow func(nkey string) error,
	pace func(size int) error) error {
	// The end of one direction is the end of both: neither side of NATS goes on with half a connection.
	end := func() { _, _ = client.Close(), server.Close() }
	stop := context.AfterFunc(ctx, end)
	defer stop()
	var both sync.WaitGroup
	both.Go(func() {
		defer end()
		_, _ = io.CopyBuffer(deadlineWriter{client}, readerOnly{server}, make([]byte, copyBuffer))
	})
	err := protocol.Copy(server, client, allow, pace)
	end()
	both.Wait()
	return err
}

// deadlineWriter bounds each write: if a client does not read, the server's own deadline ends its side of the
// connection, but not a write to that client.
type deadlineWriter struct{ conn net.Conn }

func (w deadlineWriter) Write(p []byte) (int, error) {
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.conn.Write(p)
}

// readerOnly hides that a connection could copy by itself, which takes a larger buffer.
type readerOnly struct{ io.Reader }

func (d *Door) refuse(reason string, p unixgrpc.Peer, why string) {
	d.refused.WithLabelValues(reason).Inc()
	d.mu.Lock()
	now := time.Now()
	quiet := now.Sub(d.logged[p.UID]) < refusalLogPeriod
	if !quiet {
		d.logged[p.UID] = now
	}
	d.mu.Unlock()
	if !quiet {
		d.log.Warn("refused a connection to the bus", logkey.UID, p.UID, logkey.PID, p.PID, logkey.Reason, why)
	}
}

// acceptPause lets others give back what there was too little of, such as descriptors.
const acceptPause = 50 * time.Millisecond

// temporary reports whether a later accept may succeed.
func temporary(err error) bool {
	var e interface{ Temporary() bool }
	return errors.As(err, &e) && e.Temporary()
}
