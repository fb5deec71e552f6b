// Package stats serves what the stats service has measured: the Summary API and two pages of metrics.
//
// It passes the figures on as stats writes them. A page goes from stats to the caller part by part, so the size of a
// page costs no memory here. Every answer says how old its figures are. If stats is away or does not answer in time,
// callers get 503 at once, with the reason and when to try again.
//
// Few readers are served at one time, and of one address half of them, because each holds a place at stats, where
// others than nodeapi ask too. A reader who does not take what he asked for loses his place.
package stats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
	"github.com/microlet/microlet/services/nodeapi/internal/inflight"
)

const (
	// patience is how long a caller may wait for a summary or for the first part of a page, the wait for a place
	// included, and then for each other part. It is shorter than the 10 s that metrics-server and Prometheus wait by
	// default, so that they get the reason.
	patience = 8 * time.Second
	// readers is how many are served at one time. stats serves more. perAddress is the share of one address.
	readers, perAddress = 6, 3
	// queue is how many of one address wait for a place, and queueWait how long.
	queue, queueWait = 32, patience
	// pageWrite is how long a caller may take for a page.
	pageWrite = 30 * time.Second
	// retryAfter is the value of Retry-After. The supervisor restarts stats at once.
	retryAfter = "1"
	// logPeriod is how often a problem is logged.
	logPeriod = 10 * time.Second
	// pageType is the content type of a page; the kubelet's is the same for callers that name no other.
	pageType = "text/plain; version=0.0.4; charset=utf-8"
)

// errSlow is why a call was given up.
var errSlow = fmt.Errorf("no answer within %s", patience)

// Names of what is served, as metrics and logs have them.
const (
	summary  = "summary"
	resource = "resource"
	cadvisor = "cadvisor"
)

// Handlers serve what stats has measured. They are safe for concurrent use.
type Handlers struct {
	client statsv1.StatsServiceClient
	places *inflight.Limiter
	log    *slog.Logger
	failed *prometheus.CounterVec
	stale  *prometheus.CounterVec
	logged rate.Sometimes
}

// New returns handlers that ask this client.
func New(client statsv1.StatsServiceClient, log *slog.Logger, metrics prometheus.Registerer) *Handlers {
	h := &Handlers{
		client: client,
		log:    log,
		places: inflight.New(inflight.Limits{Total: readers, PerAddress: perAddress, Queue: queue, Wait: queueWait}),
		logged: rate.Sometimes{First: 1, Interval: logPeriod},
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodeapi_stats_failed_total",
			Help: "Requests for figures that were not answered, or not to the end.",
		}, []string{"page"}),
		stale: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_nodeapi_stats_stale_total",
			Help: "Requests for figures that were answered with older ones than stats should have.",
		}, []string{"page"}),
	}
	metrics.MustRegister(h.failed, h.stale)
	for _, page := range []string{summary, resource, cadvisor} {
		h.failed.WithLabelValues(page)
		h.stale.WithLabelValues(page)
	}
	return h
}

// Summary serves the Summary API. As with the kubelet, only_cpu_and_memory may be in the query or in a form, and
// counts if it is there once and is "true".
func (h *Handlers) Summary(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, fmt.Sprintf("parse form failed: %v", err), http.StatusBadRequest)
		return
	}
	only := r.Form["only_cpu_and_memory"]
	ctx, _, cancel := patient(r.Context())
	defer cancel()
	leave, entered := h.enter(ctx, w, r, summary)
	if !entered {
		return
	}
	defer leave()
	answer, err := h.client.Summary(ctx,
		&statsv1.SummaryRequest{OnlyCpuAndMemory: len(only) == 1 && only[0] == "true"})
	if err != nil {
		h.refuse(ctx, w, summary, err)
		return
	}
	h.describe(w, summary, answer.GetTaken(), answer.GetProblem())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer.GetJson())))
	leave()                          // a slow caller holds up no other
	_, _ = w.Write(answer.GetJson()) // the caller may have gone
}

// Resource serves /metrics/resource.
func (h *Handlers) Resource(w http.ResponseWriter, r *http.Request) {
	h.page(w, r, resource, statsv1.MetricsPage_METRICS_PAGE_RESOURCE)
}

// Cadvisor serves /metrics/cadvisor.
func (h *Handlers) Cadvisor(w http.ResponseWriter, r *http.Request) {
	h.page(w, r, cadvisor, statsv1.MetricsPage_METRICS_PAGE_CADVISOR)
}

// page passes a page on. The first part decides what the caller gets: after it, a failure can only break the
// answer off, and a caller must not take half a page for a whole one.
func (h *Handlers) page(w http.ResponseWriter, r *http.Request, name string, which statsv1.MetricsPage) {
	ctx, slow, cancel := patient(r.Context())
	defer cancel()
	leave, entered := h.enter(ctx, w, r, name)
	if !entered {
		return
	}
	defer leave()
	// What stats takes is bounded for each part, and what the caller takes as a whole.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageWrite)) // the caller may have gone

	parts, err := h.client.Page(ctx, &statsv1.PageRequest{Page: which})
	if err != nil {
		h.refuse(ctx, w, name, err)
		return
	}
	part, err := parts.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		h.refuse(ctx, w, name, err)
		return
	}
	h.describe(w, name, part.GetTaken(), part.GetProblem())
	w.Header().Set("Content-Type", pageType)
	out, finish := compressed(w, r)
	for ; err == nil; part, err = parts.Recv() {
		slow.Stop()
		if _, failed := out.Write(part.GetText()); failed != nil {
			return // the caller has gone
		}
		slow.Reset(patience)
	}
	if !errors.Is(err, io.EOF) {
		h.count(ctx, name, err)
		panic(http.ErrAbortHandler)
	}
	_ = finish() // the caller may have gone
}

// patient returns a context that slow ends with errSlow. It has no deadline: a deadline goes along with the call, and
// stats would now and then be the first to notice it and end the call with another reason.
func patient(parent context.Context) (ctx context.Context, slow *time.Timer, cancel func()) {
	ctx, end := context.WithCancelCause(parent)
	slow = time.AfterFunc(patience, func() { end(errSlow) })
	return ctx, slow, func() {
		slow.Stop()
		end(nil)
	}
}

// enter takes a place among the readers, or answers that there is none. The wait for it is a part of the time in ctx,
// so that a caller that has waited long gets an answer while it still listens.
func (h *Handlers) enter(ctx context.Context, w http.ResponseWriter, r *http.Request, page string) (
	leave func(), entered bool,
) {
	leave, err := h.places.Acquire(ctx, httpport.AddressOf(r))
	if err == nil {
		return sync.OnceFunc(leave), true
	}
	if r.Context().Err() == nil {
		h.failed.WithLabelValues(page).Inc()
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, "too many readers of figures are being served: try again", http.StatusTooManyRequests)
	}
	return nil, false
}

// describe says how old the figures are, and why there are no newer ones.
func (h *Handlers) describe(w http.ResponseWriter, page string, taken *timestamppb.Timestamp, problem string) {
	if taken.IsValid() {
		age := math.Floor(time.Since(taken.AsTime()).Seconds())
		w.Header().Set("Age", strconv.FormatInt(int64(max(age, 0)), 10))
	}
	if problem == "" {
		return
	}
	h.stale.WithLabelValues(page).Inc()
	h.logged.Do(func() { h.log.Warn("stats has no new figures", "page", page, logkey.Err, problem) })
	w.Header().Set("Warning", "110 - "+strconv.QuoteToASCII(problem)) // the code of an answer that is stale
}

// refuse says why there is no answer.
func (h *Handlers) refuse(ctx context.Context, w http.ResponseWriter, page string, err error) {
	reason := h.count(ctx, page, err)
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, "stats has no figures: "+reason, http.StatusServiceUnavailable)
	default:
		http.Error(w, "Internal Error: "+reason, http.StatusInternalServerError)
	}
}

// count notes a call that failed, unless its caller has gone, and returns why it did.
func (h *Handlers) count(ctx context.Context, page string, err error) string {
	reason := status.Convert(err).Message()
	if cause := context.Cause(ctx); cause != nil {
		if !errors.Is(cause, errSlow) {
			return reason // the caller's own end
		}
		reason = cause.Error()
	}
	h.failed.WithLabelValues(page).Inc()
	h.logged.Do(func() { h.log.Warn("stats does not answer", "page", page, logkey.Err, reason) })
	return reason
}
