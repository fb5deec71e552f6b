// Package scrape asks all services on their sockets for what they expose.
//
// It combines the metrics in Prometheus' text format. If a service is down or hangs, only its metrics are missing.
// No series appears twice. Callers that ask at the same time share one round.
package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/singleflight"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// timeout bounds what one service may take, with all its replicas.
	timeout = 5 * time.Second
	// maxHeaders bounds the headers of an answer. Go's own bound is 10 MiB, which take several times as much.
	maxHeaders = 64 << 10
	// maxHealth bounds what a process may say of its health.
	maxHealth = 64 << 10
	// atOnce bounds how many replicas of a service are asked at one time.
	atOnce = 4
)

// amount is how much text there is, as the parser sees it: a line can take 1 KiB of memory, and a label 130 bytes.
type amount struct{ bytes, lines, labels int64 }

// most is what one service may say, with all its replicas. A prober of 500 pods with six probes each says 9 MiB in
// 54,000 lines with 270,000 labels.
var most = amount{bytes: 16 << 20, lines: 60_000, labels: 400_000}

// maxLineLabels bounds the labels of one line, because the parser compares each with all that come before it.
const maxLineLabels = 40

// amountOf returns how much text there is, which is never less than what the parser finds. An error says that the
// parser would take too long.
func amountOf(text []byte) (amount, error) {
	n := amount{bytes: int64(len(text))}
	for line := range bytes.Lines(text) {
		labels := bytes.Count(line, []byte{'='})
		if labels > maxLineLabels && line[0] != '#' {
			return n, fmt.Errorf("a line has more than %d labels", maxLineLabels)
		}
		n.lines++
		n.labels += int64(labels)
	}
	return n, nil
}

// allowance is what the replicas of a service may still say.
type allowance struct {
	mu   sync.Mutex
	left amount
}

func (a *allowance) bytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.left.bytes, 0)
}

// take takes an amount, and reports whether all of it was left.
func (a *allowance) take(n amount) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left.bytes -= n.bytes
	a.left.lines -= n.lines
	a.left.labels -= n.labels
	return a.left.bytes >= 0 && a.left.lines >= 0 && a.left.labels >= 0
}

// ContentType of what Write writes.
var ContentType = string(expfmt.NewFormat(expfmt.TypeTextPlain))

// Filter chooses families by name, of some services.
type Filter struct {
	name  string
	roles []role.Role
	take  func(family string) bool
}

// The filters. The kubelet serves its probes' results at a path of their own, and there alone.
var (
	Everything = Filter{"everything", Roles(), func(family string) bool { return !strings.HasPrefix(family, probes) }}
	Probes     = Filter{"probes", []role.Role{role.Prober}, func(family string) bool {
		return strings.HasPrefix(family, probes) || family == "process_start_time_seconds"
	}}
)

// probes begins the names of the probes' results.
const probes = "prober_"

// Roles are the services that may have something to say.
func Roles() []role.Role { return role.All() }

// process is a service's, or one of the replicas that share its work.
type process struct {
	role    role.Role
	replica string
}

// String is the process's name, the supervisor's.
func (p process) String() string { return service.ProcessName(p.role, p.replica) }

// Services are the node's services, as their sockets show them. It is safe for concurrent use.
type Services struct {
	socket func(role.Role) string
	peers  unixgrpc.Rules
	log    *slog.Logger
	limit  amount // most, but in tests
	flight singleflight.Group
	// parsing holds the memory of one process's text at a time.
	parsing sync.Mutex

	mu     sync.Mutex
	client map[process]*http.Client
}

// New returns the services. Their first replicas have their sockets at these paths, and these rules identify them.
func New(socket func(role.Role) string, peers unixgrpc.Rules, log *slog.Logger) *Services {
	return &Services{socket: socket, peers: peers, log: log, limit: most, client: map[process]*http.Client{}}
}

// of returns a client that talks to one process.
func (s *Services) of(p process) *http.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.client[p]
	if c == nil {
		path := service.ReplicaSocket(s.socket(p.role), p.replica)
		c = &http.Client{
			Timeout: timeout,
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return unixgrpc.Connect(ctx, path, p.role, s.peers)
				},
				MaxIdleConns: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHeaders,
			},
		}
		s.client[p] = c
	}
	return c
}

// processes are all that have a socket, in the services' order.
func (s *Services) processes(roles ...role.Role) []process {
	var all []process
	for _, r := range roles {
		replicas, err := service.Replicas(s.socket(r))
		if err != nil {
			s.log.Warn("not all replicas of a service can be asked", logkey.Service, r, logkey.Err, err)
		}
		s.forget(r, replicas)
		for _, replica := range replicas {
			all = append(all, process{r, replica})
		}
	}
	return all
}

// forget drops the clients of replicas that are gone. The first replica's client stays, which Pass has too.
func (s *Services) forget(r role.Role, there []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, c := range s.client {
		if p.role == r && p.replica != service.DefaultReplica && !slices.Contains(there, p.replica) {
			delete(s.client, p)
			c.CloseIdleConnections()
		}
	}
}

// each asks processes and returns what they answered in their order: all services at one time, a few replicas of
// each. A context that bounds the whole round is handed to ask.
func each[T any](ctx context.Context, of []process, ask func(context.Context, process) T) []T {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	turns := map[role.Role]chan struct{}{}
	for _, p := range of {
		if turns[p.role] == nil {
			turns[p.role] = make(chan struct{}, atOnce)
		}
	}
	answers := make([]T, len(of))
	var wg sync.WaitGroup
	for i, p := range of {
		turn := turns[p.role]
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			answers[i] = ask(ctx, p)
		})
	}
	wg.Wait()
	return answers
}

// Healthy is nil when the service, each replica of it, says that it is well, else why it is not. Callers who ask at the
// same time share one question, because a service takes few connections of nodeapi.
func (s *Services) Healthy(ctx context.Context, r role.Role) error {
	shared := s.flight.DoChan("health of "+string(r), func() (any, error) {
		return nil, s.health(context.WithoutCancel(ctx), r)
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer := <-shared:
		return answer.Err
	}
}

func (s *Services) health(ctx context.Context, r role.Role) error {
	of := s.processes(r)
	if len(of) == 0 {
		return fmt.Errorf("%s has no socket: it does not run", r)
	}
	return errors.Join(each(ctx, of, func(ctx context.Context, p process) error {
		body, err := s.ask(ctx, p, "/healthz", maxHealth)
		if err != nil {
			return err
		}
		if text := strings.TrimSpace(string(body)); text != "ok" {
			return fmt.Errorf("%s says: %s", p, text)
		}
		return nil
	})...)
}

// Pass returns a handler that passes requests on to a service, and its answers back.
func (s *Services) Pass(r role.Role) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", string(r)
			p.Out.Header = http.Header{} // what the caller sent to nodeapi is not the service's
		},
		Transport: s.of(process{r, service.DefaultReplica}).Transport,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, fmt.Sprintf("ask %s: %v", r, err), http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// SetVerbosity has all services that run log as much.
func (s *Services) SetVerbosity(ctx context.Context, level int) error {
	return errors.Join(each(ctx, s.processes(Roles()...), func(ctx context.Context, p process) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+p.String()+"/debug/flags/v",
			strings.NewReader(strconv.Itoa(level)))
		if err != nil {
			return err
		}
		answer, err := s.of(p).Do(req)
		if err != nil {
			return fmt.Errorf("ask %s: %w", p, err)
		}
		if answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s says %s", p, answer.Status)
		}
		return errors.Join(err, answer.Body.Close())
	})...)
}

// Exists reports whether the node runs the service.
func (s *Services) Exists(r role.Role) bool { return len(s.processes(r)) > 0 }

// ask gets a path of a process, which may answer with so many bytes.
func (s *Services) ask(ctx context.Context, p process, path string, limit int64) (body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.String()+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.of(p).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", p, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", p, err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("ask %s: more than %d bytes", p, limit)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %d: %s", p, answer.StatusCode, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// Write writes the metrics that the filter takes.
func (s *Services) Write(ctx context.Context, w io.Writer, f Filter) error {
	shared := s.flight.DoChan(f.name, func() (any, error) { return s.gather(context.WithoutCancel(ctx), f), nil })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer := <-shared:
		if answer.Err != nil {
			return answer.Err
		}
		_, err := w.Write(answer.Val.([]byte))
		return err
	}
}

// gather asks all processes and joins what they say.
func (s *Services) gather(ctx context.Context, f Filter) []byte {
	of := s.processes(f.roles...)
	left := map[role.Role]*allowance{}
	for _, r := range f.roles {
		left[r] = &allowance{left: s.limit}
	}
	return join(each(ctx, of, func(ctx context.Context, p process) map[string]family {
		families, err := s.families(ctx, p, f, left[p.role])
		if err != nil {
			s.log.Warn("service gives no metrics", logkey.Service, p, logkey.Err, err)
		}
		return families
	}))
}

// families asks for the metrics, which it takes from what the service may still say.
func (s *Services) families(ctx context.Context, p process, f Filter, left *allowance) (map[string]family, error) {
	body, err := s.ask(ctx, p, "/metrics", left.bytes())
	if err != nil {
		return nil, err
	}
	said, err := amountOf(body)
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", p, err)
	}
	if !left.take(said) {
		return nil, fmt.Errorf("ask %s: the service says more than %d bytes, %d lines or %d labels", p, s.limit.bytes,
			s.limit.lines, s.limit.labels)
	}
	s.parsing.Lock()
	defer s.parsing.Unlock()
	parser := expfmt.NewTextParser(model.LegacyValidation) // no service has names that older readers do not know
	parsed, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", p, err)
	}
	families, foreign, err := p.take(parsed, f)
	if foreign != "" {
		s.log.Warn("service gives metrics of another service, which are left out", logkey.Service, p, "metric", foreign)
	}
	return families, err
}
