package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/component-base/metrics/prometheus/slis"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
	"github.com/microlet/microlet/services/nodeapi/internal/containerlogs"
	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
	"github.com/microlet/microlet/services/nodeapi/internal/inflight"
	"github.com/microlet/microlet/services/nodeapi/internal/nodelogs"
	"github.com/microlet/microlet/services/nodeapi/internal/pods"
	"github.com/microlet/microlet/services/nodeapi/internal/runtime"
	"github.com/microlet/microlet/services/nodeapi/internal/scrape"
	"github.com/microlet/microlet/services/nodeapi/internal/stats"
)

const (
	// maxBody bounds a request's body, of which no route needs more; what streams carry is no body.
	maxBody = 64 << 10
	// bodyTimeout bounds the arrival of a body: who sends it byte by byte is gone after it.
	bodyTimeout = 10 * time.Second
	// unauthenticatedWait is how long a request waits for a place in which its caller is authenticated.
	unauthenticatedWait = 5 * time.Second
	// maxQueries is how many queries to the journal are under way at one time. Each is a process, which reads files of
	// many MiB.
	maxQueries = 8
	// refusedLogPeriod is how often it is logged that there was none.
	refusedLogPeriod = 10 * time.Second
	// shortWrite bounds the writing of a short answer, which a slow reader may take so long to fetch.
	shortWrite = 2 * time.Minute
)

// Checker lets requests pass or refuses them.
type Checker interface {
	Check(r *http.Request, subresources []string) *auth.Refusal
}

// Options of a Server.
type Options struct {
	Kubelet *kubeletv1beta1.KubeletConfiguration
	// Gate reports whether a feature gate is on.
	Gate func(name string) bool
	// DebuggingHandlers are enableDebuggingHandlers.
	DebuggingHandlers bool
	Pods              *pods.Pods
	Runtime           *runtime.Runtime
	Logs              *containerlogs.Reader
	NodeLogs          nodelogs.Logs
	// LogQuery reports whether the journal may be queried.
	LogQuery bool
	// Checkpoints is the folder that the runtime writes containers' checkpoints to.
	Checkpoints string
	// Flags are the command line's, by name.
	Flags    map[string]string
	Services *scrape.Services
	// Stats serves what the stats service has measured.
	Stats *stats.Handlers
	// MaxRequests, MaxLogs and MaxStreams are how many requests of each cost a port may have at one time.
	MaxRequests, MaxLogs, MaxStreams int
	// MaxUnauthenticated is how many requests of unauthenticated callers may be under way; one address may have a quarter
	// of them.
	MaxUnauthenticated int
	// LongWrite bounds one write to a reader of a long answer: who reads nothing for so long is cut off.
	// 0 is for ever.
	LongWrite time.Duration
	// Tracer records what is served; nil if the node does not trace.
	Tracer  *tracing.Tracer
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Server is the API, for both of its ports. It is safe for concurrent use.
type Server struct {
	options  Options
	started  time.Time
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
	upgrades *prometheus.CounterVec
	busy     *prometheus.CounterVec
	foreign  prometheus.Counter
	slis     http.Handler
	// unauthenticated has the places of callers who are not known yet.
	unauthenticated *inflight.Limiter
	refusedLog      rate.Sometimes
	// queries has the places of queries to the journal.
	queries *places
}

// New returns a server; its metrics have the kubelet's names.
func New(o Options) *Server {
	labels := []string{"method", "path", "server_type", "long_running"}
	s := &Server{
		options: o, started: time.Now(),
		unauthenticated: inflight.New(inflight.Limits{
			Total:      o.MaxUnauthenticated,
			PerAddress: max(o.MaxUnauthenticated/4, 1),
			Queue:      o.MaxUnauthenticated,
			Wait:       unauthenticatedWait,
		}),
		refusedLog: rate.Sometimes{First: 1, Interval: refusedLogPeriod},
		queries:    newPlaces(maxQueries),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_http_requests_total", Help: "Number of the http requests received since the server started",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_http_requests_duration_seconds",
			Help:    "Duration in seconds to serve http requests",
			Buckets: prometheus.DefBuckets,
		}, labels),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_http_inflight_requests", Help: "Number of the inflight http requests",
		}, labels),
		upgrades: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_websocket_streaming_requests_total",
			Help: "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
		}, []string{"subresource"}),
		busy: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodeapi_busy_total",
			Help: "Requests refused because as many of their kind were under way as may be.",
		}, []string{"kind"}),
		foreign: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "microlet_nodeapi_foreign_containers_total",
			Help: "Requests for a log that were refused because the container, by its ID on the bus, is another pod's by the " +
				"runtime's labels.",
		}),
	}
	o.Metrics.MustRegister(s.requests, s.duration, s.inflight, s.upgrades, s.busy, s.foreign)
	mux := http.NewServeMux()
	slis.SLIMetricsWithReset{}.Install(mux)
	s.slis = mux
	return s
}

// Handler returns the API of the secure port, which the checker guards.
func (s *Server) Handler(c Checker) http.Handler { return s.handler(s.routes(), c, "readwrite") }

// ReadOnly returns the API of the read-only port, which is unguarded.
func (s *Server) ReadOnly() http.Handler {
	var public []route
	for _, r := range s.routes() {
		if r.public {
			public = append(public, r)
		}
	}
	return s.handler(public, nil, "readonly")
}

// healthServer is the health port in metrics. The kubelet does not trace it.
const healthServer = "healthz"

// Healthz returns the API of the health port.
func (s *Server) Healthz() http.Handler {
	var health []route
	for _, r := range s.routes() {
		if r.bucket == "healthz" {
			health = append(health, r)
		}
	}
	return s.handler(health, nil, healthServer)
}

// handler answers these routes. A nil checker lets every caller pass.
func (s *Server) handler(routes []route, c Checker, serverType string) http.Handler {
	byPattern := map[string]route{}
	// Each port has its own, so that a caller who takes all of one takes none of another, such as that of the node's
	// health.
	of := map[cost]room{
		short:  newRoom(s.options.MaxRequests),
		long:   newRoom(s.options.MaxLogs),
		stream: newRoom(s.options.MaxStreams),
	}
	mux := http.NewServeMux()
	for _, r := range routes {
		byPattern[r.pattern] = r
		mux.Handle(r.pattern, r.handle)
	}
	served := http.Handler(mux)
	if serverType != healthServer {
		// Who is refused leaves no span, and only callers who are known may continue a trace of their own.
		served = s.options.Tracer.Handler(mux, c != nil)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, pattern := mux.Handler(req)
		r, known := byPattern[pattern]
		if !known {
			// Only who may call all that exists learns whether it exists.
			r = route{subresources: subProxy, bucket: "other"}
		}
		defer s.observe(req.Method, r, serverType)()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !setWriteDeadline(w, shortWrite) || !setBodyDeadline(w, req) {
			return
		}
		if c != nil {
			if refusal := s.authorize(c, req, r.subresources); refusal != nil {
				refuse(w, req, refusal)
				return
			}
		}
		if known && !r.answers(req.Method) {
			w.Header().Set("Allow", strings.Join(r.methods, ", "))
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
			return
		}
		// Without authentication, a body that does not come keeps no place from other callers of the address.
		if c == nil && !takeBody(w, req) {
			return
		}
		release, free := of[r.cost].take(r.owner(req), req)
		if !free {
			s.refuseBusy(w, r.cost.String())
			return
		}
		defer release()
		if c != nil && r.cost != stream && !takeBody(w, req) {
			return
		}
		served.ServeHTTP(w, req)
	})
}

// refuseBusy answers that as many requests of a kind are under way as may be.
func (s *Server) refuseBusy(w http.ResponseWriter, kind string) {
	s.busy.WithLabelValues(kind).Inc()
	w.Header().Set("Retry-After", "1")
	http.Error(w,
		fmt.Sprintf("too many requests of this kind (%s) are under way, or their headers take too much: try "+
			"again", kind), http.StatusTooManyRequests)
}

// refuse answers with a refusal. Who is not known has little time to fetch it, after his body, which net/http reads
// first.
func refuse(w http.ResponseWriter, r *http.Request, refusal *auth.Refusal) {
	limit := httpport.StrangerWrite
	if r.Body != http.NoBody {
		limit += bodyTimeout
	}
	if !httpport.Authenticated(r.Context()) && !setWriteDeadline(w, limit) {
		return
	}
	if refusal.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(refusal.Code)
	// The caller may have gone.
	_, _ = w.Write([]byte(refusal.Text)) //nolint:gosec // plain text, as its header says
}

// authorize has the checker decide. Any caller could cause this work before it is known, so it has few places, shared
// out among the addresses.
func (s *Server) authorize(c Checker, r *http.Request, subresources []string) *auth.Refusal {
	if httpport.Authenticated(r.Context()) {
		return c.Check(r, subresources)
	}
	release, err := s.unauthenticated.Acquire(r.Context(), httpport.AddressOf(r))
	if err != nil {
		s.busy.WithLabelValues("unauthenticated").Inc()
		s.refusedLog.Do(func() {
			s.options.Log.Warn("request refused before its caller was authenticated",
				logkey.Address, httpport.AddressOf(r).String(), logkey.Err, err)
		})
		return &auth.Refusal{Code: http.StatusTooManyRequests, Text: err.Error() + ": try again\n"}
	}
	defer release()
	return c.Check(r, subresources)
}

func (c cost) String() string {
	return map[cost]string{short: "short", long: "log", stream: "stream"}[c]
}

// setWriteDeadline bounds the writes to come; false means that the connection is gone.
func setWriteDeadline(w http.ResponseWriter, d time.Duration) bool {
	deadline := time.Time{}
	if d > 0 {
		deadline = time.Now().Add(d)
	}
	return http.NewResponseController(w).SetWriteDeadline(deadline) == nil
}

// setBodyDeadline bounds the arrival of the body, also of a request that is refused: its body is still read
// to its end, by net/http. A connection that is handed over has no deadline any more. False means that
// the connection is gone.
func setBodyDeadline(w http.ResponseWriter, r *http.Request) bool {
	if r.Body == http.NoBody {
		return true
	}
	return http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) == nil
}

// takeBody reads the body before the request is served, or answers it. While a body is outstanding, net/http
// would not notice that the caller has gone.
func takeBody(w http.ResponseWriter, r *http.Request) bool {
	if r.Body == http.NoBody {
		return true
	}
	if !setBodyDeadline(w, r) { // again: the review of the caller may have taken as long
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w,
			fmt.Sprintf("the body has more than %d bytes: nothing here takes so much", maxBody),
			http.StatusRequestEntityTooLarge)
		return false
	case err != nil:
		http.Error(w, fmt.Sprintf("read the body: %v", err), http.StatusBadRequest)
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return http.NewResponseController(w).SetReadDeadline(time.Time{}) == nil
}

// observe counts a request, and returns what is to be called at its end.
func (s *Server) observe(method string, r route, serverType string) func() {
	if !knownMethods[method] {
		method = "other"
	}
	values := []string{method, r.bucket, serverType, strconv.FormatBool(r.cost == stream || r.bucket == "debug")}
	s.requests.WithLabelValues(values...).Inc()
	s.inflight.WithLabelValues(values...).Inc()
	began := time.Now()
	return func() {
		s.inflight.WithLabelValues(values...).Dec()
		s.duration.WithLabelValues(values...).Observe(time.Since(began).Seconds())
	}
}

// knownMethods are those that metrics name; a caller may invent others.
var knownMethods = map[string]bool{
	http.MethodOptions: true, http.MethodGet: true, http.MethodHead: true, http.MethodPost: true,
	http.MethodPut: true, http.MethodDelete: true, http.MethodTrace: true, http.MethodConnect: true,
}
