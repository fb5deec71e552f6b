package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

const (
	// httpTimeout bounds the reading of a request and the writing of its answer.
	httpTimeout = 10 * time.Second
	// maxHeaders is what the headers of a request may have: the caller is judged behind them. Go's own bound is 1 MiB, for
	// which a caller has it take 18 MiB.
	maxHeaders = 16 << 10
	// maxProfile bounds a profile or a trace, in seconds. What the process traces waits in its memory for a caller that
	// does not read.
	maxProfile = 60
	// httpStop is how long answers that are under way may take once the service stops.
	httpStop = time.Second
)

// Serve answers /metrics from the registry, /healthz with 200 "ok" or 503 and the error of healthy,
// /debug/pprof with the process's profiles, and a PUT to /debug/flags/v by changing how much it logs, until
// the context ends. It owns the listener, which is a unix socket's. Others than root and nodeapi, as the rules
// know them, get 403.
func Serve(ctx context.Context, l net.Listener, peers unixgrpc.Rules, r *prometheus.Registry,
	healthy func() error) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{Timeout: httpTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		body := "ok"
		if err := healthy(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			body = err.Error()
		}
		if _, err := w.Write([]byte(body + "\n")); err != nil {
			slog.Debug("healthz answer not delivered", logkey.Err, err)
		}
	})
	for path, profile := range map[string]http.HandlerFunc{
		"":        pprof.Index,
		"cmdline": pprof.Cmdline,
		"profile": pprof.Profile,
		"symbol":  pprof.Symbol,
		"trace":   pprof.Trace,
	} {
		mux.Handle("GET /debug/pprof/"+path, bounded(profile)) // it extends the write timeout by its own length
	}
	mux.HandleFunc("PUT /debug/flags/v", setVerbosity)
	guard := newGuard(peers, r)
	server := &http.Server{
		Handler:           guard.handler(mux),
		ConnContext:       guard.connection,
		ReadHeaderTimeout: httpTimeout,
		WriteTimeout:      2 * httpTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaders,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve metrics on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStop)
	defer cancel()
	err := server.Shutdown(stop)
	if err != nil {
		err = server.Close() // who reads so slowly gets half an answer
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// bounded refuses a profile or a trace that would take too long.
func bounded(profile http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seconds, err := strconv.ParseFloat(r.FormValue("seconds"), 64); err == nil && !(seconds <= maxProfile) {
			http.Error(w, fmt.Sprintf("seconds is %v: give at most %d", seconds, maxProfile), http.StatusBadRequest)
			return
		}
		profile.ServeHTTP(w, r)
	})
}

// setVerbosity takes the number that is the request's body.
func setVerbosity(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(body)))
	if err == nil && v > MaxVerbosity {
		err = fmt.Errorf("verbosity is %d: use 0 to %d; from %d on the bodies of requests are logged, which hold Secrets "+
			"and tokens, so that it takes a restart with --v=%d",
			v, MaxVerbosity, MaxVerbosity+1, v)
	}
	if err == nil {
		err = SetVerbosity(v)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}
