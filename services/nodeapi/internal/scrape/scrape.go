// Package scrape gathers what the services say of themselves: their metrics, and their health.
//
// Its inputs are the services' sockets of metrics; its output is one exposition in Prometheus' text
// format. It guarantees that a service that is away or hangs costs nothing but its own figures, that
// no series appears twice, and that callers who come at once share one round.
package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/singleflight"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
)

const (
	// timeout bounds what one service may take.
	timeout = 5 * time.Second
	// maxAnswer bounds what one service may say.
	maxAnswer = 32 << 20
)

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
func (p process) String() string {
	if p.replica == service.DefaultReplica {
		return string(p.role)
	}
	return string(p.role) + "." + p.replica
}

// Services are the node's services, as their sockets show them. It is safe for concurrent use.
type Services struct {
	socket func(role.Role) string
	log    *slog.Logger
	flight singleflight.Group

	mu     sync.Mutex
	client map[process]*http.Client
}

// New returns the services whose first replicas' sockets are at these paths.
func New(socket func(role.Role) string, log *slog.Logger) *Services {
	return &Services{socket: socket, log: log, client: map[process]*http.Client{}}
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
					return (&net.Dialer{}).DialContext(ctx, "unix", path)
				},
				MaxIdleConns: 1, IdleConnTimeout: time.Minute,
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
			s.log.Warn("replicas of a service cannot be found", "service", r, "error", err)
		}
		for _, replica := range replicas {
			all = append(all, process{r, replica})
		}
	}
	return all
}

// each asks processes at one time and returns what they answered in their order.
func each[T any](of []process, ask func(process) T) []T {
	answers := make([]T, len(of))
	var wg sync.WaitGroup
	for i, p := range of {
		wg.Go(func() { answers[i] = ask(p) })
	}
	wg.Wait()
	return answers
}

// Healthy is nil when the service, each replica of it, says that it is well, else why it is not.
func (s *Services) Healthy(ctx context.Context, r role.Role) error {
	of := s.processes(r)
	if len(of) == 0 {
		return fmt.Errorf("%s has no socket: it does not run", r)
	}
	return errors.Join(each(of, func(p process) error {
		body, err := s.ask(ctx, p, "/healthz")
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
			p.Out.Header = http.Header{} // what the caller sent to the edge is not the service's
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
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return errors.Join(each(s.processes(Roles()...), func(p process) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+p.String()+"/debug/flags/v", strings.NewReader(strconv.Itoa(level)))
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

// Exists says whether the node runs the service.
func (s *Services) Exists(r role.Role) bool { return len(s.processes(r)) > 0 }

// ask gets a path of a process.
func (s *Services) ask(ctx context.Context, p process, path string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.String()+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.of(p).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", p, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", p, err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("ask %s: more than %d bytes", p, maxAnswer)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %d: %s", p, answer.StatusCode, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// Write writes the metrics that the filter takes.
func (s *Services) Write(ctx context.Context, w io.Writer, f Filter) error {
	shared := s.flight.DoChan(f.name, func() (any, error) { return s.gather(context.WithoutCancel(ctx), f) })
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

// gather asks all processes at once and joins what they say.
func (s *Services) gather(ctx context.Context, f Filter) ([]byte, error) {
	of := s.processes(f.roles...)
	said := each(of, func(p process) map[string]*dto.MetricFamily {
		families, err := s.families(ctx, p)
		if err != nil {
			s.log.Warn("service gives no metrics", "of", p, "error", err)
		}
		return families
	})
	joined := join(of, said, f)
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(joined)) {
		if _, err := expfmt.MetricFamilyToText(&out, joined[name]); err != nil {
			return nil, fmt.Errorf("write metric %s: %w", name, err)
		}
	}
	return out.Bytes(), nil
}

func (s *Services) families(ctx context.Context, p process) (map[string]*dto.MetricFamily, error) {
	body, err := s.ask(ctx, p, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", p, err)
	}
	return families, nil
}
