package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// httpTimeout bounds the reading of a request and the writing of its answer.
	httpTimeout = 10 * time.Second
	// httpStop is how long answers that are under way may take once the service stops.
	httpStop = time.Second
)

// Serve answers /metrics from the registry, and /healthz with 200 "ok" or 503 and the error of
// healthy, until the context ends. It owns the listener.
func Serve(ctx context.Context, l net.Listener, r *prometheus.Registry, healthy func() error) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{Timeout: httpTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		body := "ok"
		if err := healthy(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			body = err.Error()
		}
		if _, err := w.Write([]byte(body + "\n")); err != nil {
			slog.Debug("healthz answer not delivered", "error", err)
		}
	})
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: httpTimeout,
		WriteTimeout:      2 * httpTimeout,
		IdleTimeout:       time.Minute,
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
