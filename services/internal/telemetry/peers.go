package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// readers may ask for metrics, health and profiles, and change the verbosity: nodeapi does for its callers, and root
// comes as Up.
var readers = []role.Role{role.NodeAPI, role.Up}

// denialLogPeriod bounds what those who are refused can write into the log.
const denialLogPeriod = 10 * time.Second

// peerKey is where a request's context has its peer.
type peerKey struct{}

// guard refuses requests of those who are not readers.
type guard struct {
	peers  unixgrpc.Rules
	denied prometheus.Counter

	mu     sync.Mutex
	logged time.Time
}

func newGuard(peers unixgrpc.Rules, r *prometheus.Registry) *guard {
	g := &guard{peers: peers, denied: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "microlet_metrics_denied_total",
		Help: "Requests on the socket of metrics that were refused because the caller is neither root nor nodeapi.",
	})}
	r.MustRegister(g.denied)
	return g
}

// connection identifies the peer once; requests on the connection are its own.
func (g *guard) connection(ctx context.Context, conn net.Conn) context.Context {
	p, err := unixgrpc.Identify(conn, g.peers)
	if err != nil {
		p = unixgrpc.Peer{UID: -1, PID: -1, Reason: err.Error()}
	}
	return context.WithValue(ctx, peerKey{}, p)
}

func (g *guard) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(peerKey{}).(unixgrpc.Peer)
		if ok && slices.ContainsFunc(readers, p.Is) {
			next.ServeHTTP(w, r)
			return
		}
		g.denied.Inc()
		if g.mayLog(time.Now()) {
			slog.Warn("request on the socket of metrics denied", logkey.Path, r.URL.Path, logkey.UID, p.UID,
				logkey.PID, p.PID,
				logkey.Roles, p.Roles, logkey.Reason, p.Reason)
		}
		http.Error(w, fmt.Sprintf("%s may not ask: only root and nodeapi may", p), http.StatusForbidden)
	})
}

func (g *guard) mayLog(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.logged) < denialLogPeriod {
		return false
	}
	g.logged = now
	return true
}
