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
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
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
)

const (
	// timeout bounds what one service may take.
	timeout = 5 * time.Second
	// maxAnswer bounds what one service may say.
	maxAnswer = 32 << 20
)

// ContentType of what Write writes.
var ContentType = string(expfmt.NewFormat(expfmt.TypeTextPlain))

// Filter chooses families by name and service.
type Filter struct {
	name string
	take func(r role.Role, family string) bool
}

// The filters. The kubelet serves its probes' results at a path of their own, and there alone.
var (
	Everything = Filter{"everything", func(_ role.Role, family string) bool { return !strings.HasPrefix(family, "prober_") }}
	Probes     = Filter{"probes", func(r role.Role, family string) bool {
		return r == role.Prober && (strings.HasPrefix(family, "prober_") || family == "process_start_time_seconds")
	}}
)

// Roles are the services that may have something to say.
func Roles() []role.Role { return role.All() }

// Services are the node's services, as their sockets show them. It is safe for concurrent use.
type Services struct {
	socket func(role.Role) string
	log    *slog.Logger
	flight singleflight.Group
	client map[role.Role]*http.Client
}

// New returns the services whose sockets are at these paths.
func New(socket func(role.Role) string, log *slog.Logger) *Services {
	s := &Services{socket: socket, log: log, client: map[role.Role]*http.Client{}}
	for _, r := range Roles() {
		s.client[r] = &http.Client{
			Timeout: timeout,
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "unix", socket(r))
				},
				MaxIdleConns: 1, IdleConnTimeout: time.Minute,
			},
		}
	}
	return s
}

// Healthy is nil when the service says that it is well, else why it is not.
func (s *Services) Healthy(ctx context.Context, r role.Role) error {
	body, err := s.ask(ctx, r, "/healthz")
	if err != nil {
		return err
	}
	if text := strings.TrimSpace(string(body)); text != "ok" {
		return errors.New(text)
	}
	return nil
}

// Pass returns a handler that passes requests on to a service, and its answers back.
func (s *Services) Pass(r role.Role) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", string(r)
			p.Out.Header = http.Header{} // what the caller sent to the edge is not the service's
		},
		Transport: s.client[r].Transport,
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
	var problems []error
	for _, r := range Roles() {
		if !s.Exists(r) {
			continue
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+string(r)+"/debug/flags/v", strings.NewReader(strconv.Itoa(level)))
		if err != nil {
			return err
		}
		answer, err := s.client[r].Do(req)
		if err != nil {
			problems = append(problems, fmt.Errorf("ask %s: %w", r, err))
			continue
		}
		if answer.StatusCode != http.StatusOK {
			problems = append(problems, fmt.Errorf("%s says %s", r, answer.Status))
		}
		problems = append(problems, answer.Body.Close())
	}
	return errors.Join(problems...)
}

// Exists says whether the node runs the service.
func (s *Services) Exists(r role.Role) bool {
	_, err := os.Lstat(s.socket(r))
	return !errors.Is(err, fs.ErrNotExist)
}

// ask gets a path of a service.
func (s *Services) ask(ctx context.Context, r role.Role, path string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(r)+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.client[r].Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", r, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", r, err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("ask %s: more than %d bytes", r, maxAnswer)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %d: %s", r, answer.StatusCode, strings.TrimSpace(string(body)))
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

// gather asks all services at once and joins what they say.
func (s *Services) gather(ctx context.Context, f Filter) ([]byte, error) {
	roles := Roles()
	said := make([]map[string]*dto.MetricFamily, len(roles))
	var wg sync.WaitGroup
	for i, r := range roles {
		if !s.Exists(r) {
			continue
		}
		wg.Go(func() {
			families, err := s.families(ctx, r)
			if err != nil {
				s.log.Warn("service gives no metrics", "of", r, "error", err)
				return
			}
			said[i] = families
		})
	}
	wg.Wait()
	joined := join(roles, said, f)
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(joined)) {
		if _, err := expfmt.MetricFamilyToText(&out, joined[name]); err != nil {
			return nil, fmt.Errorf("write metric %s: %w", name, err)
		}
	}
	return out.Bytes(), nil
}

func (s *Services) families(ctx context.Context, r role.Role) (map[string]*dto.MetricFamily, error) {
	body, err := s.ask(ctx, r, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", r, err)
	}
	return families, nil
}
