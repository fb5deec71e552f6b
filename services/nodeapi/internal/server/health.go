package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/component-base/metrics/prometheus/slis"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/nodeapi/internal/scrape"
)

// devicePlugin is the kubelet's check of whether device plugins can register. It has a path of its own alone.
const devicePlugin = "device-plugin"

// healthz speaks of the core alone: that this process answers, and that podsync's loop does not hang. A helper that is
// away must not be a reason to restart the node.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	var lines []string
	ok := true
	for _, name := range []string{"ping", "log", "syncloop"} {
		if slices.Contains(r.URL.Query()["exclude"], name) {
			lines = append(lines, fmt.Sprintf("[+]%s excluded: ok", name))
			continue
		}
		err := s.check(r.Context(), name)
		observe(r.Context(), name, err)
		if err != nil {
			ok = false
			lines = append(lines, fmt.Sprintf("[-]%s failed: %v", name, err))
			continue
		}
		lines = append(lines, fmt.Sprintf("[+]%s ok", name))
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, verbose := r.URL.Query()["verbose"]
	switch {
	case !ok:
		http.Error(w, strings.Join(lines, "\n")+"\nhealthz check failed", http.StatusInternalServerError)
	case verbose:
		fmt.Fprintf(w, "%s\nhealthz check passed\n", strings.Join(lines, "\n"))
	default:
		fmt.Fprint(w, "ok")
	}
}

// observe counts a check's result for /metrics/slis, which reports the results of each request for all checks.
func observe(ctx context.Context, name string, err error) {
	status := slis.Success
	if err != nil {
		status = slis.Error
	}
	_ = slis.ObserveHealthcheck(ctx, name, "healthz", status) // it never fails
}

// check is one of the kubelet's checks.
func (s *Server) check(ctx context.Context, name string) error {
	switch {
	case name == "syncloop":
		return s.options.Services.Healthy(ctx, role.Podsync)
	case name == devicePlugin && s.options.Services.Exists(role.Resources): // it runs on demand
		return s.options.Services.Healthy(ctx, role.Resources)
	}
	return nil // that this is answered is what ping and log say: the log never blocks here
}

// healthCheck is one check, or what one service says of itself.
func (s *Server) healthCheck(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("check")
	var err error
	switch {
	case slices.Contains([]string{"ping", "log", "syncloop", devicePlugin}, name):
		err = s.check(r.Context(), name)
	case slices.Contains(scrape.Roles(), role.Role(name)) && s.options.Services.Exists(role.Role(name)):
		err = s.options.Services.Healthy(r.Context(), role.Role(name))
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "ok")
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", scrape.ContentType)
	if err := s.options.Services.Write(r.Context(), w, scrape.Everything); err != nil {
		s.options.Log.Debug("metrics not delivered", logkey.Err, err)
	}
}

// probeMetrics are the prober's results alone.
func (s *Server) probeMetrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", scrape.ContentType)
	if err := s.options.Services.Write(r.Context(), w, scrape.Probes); err != nil {
		s.options.Log.Debug("metrics of probes not delivered", logkey.Err, err)
	}
}
