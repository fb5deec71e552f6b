package server

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/telemetry"
	"github.com/microlet/microlet/services/nodeapi/internal/nodelogs"
)

// profile passes the request on to the service to profile: podsync, which does most of what a kubelet does, or the one
// that "service" names.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	of := role.Podsync
	if name := r.URL.Query().Get("service"); name != "" {
		of = role.Role(name)
	}
	if _, err := role.Get(of); err != nil {
		http.Error(w,
			fmt.Sprintf("service is %q: give the name of one of this node's services", of), http.StatusBadRequest)
		return
	}
	s.options.Services.Pass(of).ServeHTTP(w, r)
}

// verbosity sets how much all services log.
func (s *Server) verbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "unrecognized http method", http.StatusNotAcceptable)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	level, err := strconv.Atoi(strings.TrimSpace(string(body)))
	if err != nil || level < 0 || level > telemetry.MaxVerbosity {
		http.Error(w,
			fmt.Sprintf("verbosity is %q: give a whole number from 0 to %d; above it Secrets and tokens are logged, which "+
				"takes a restart with --v",
				body, telemetry.MaxVerbosity), http.StatusBadRequest)
		return
	}
	if err := s.options.Services.SetVerbosity(r.Context(), level); err != nil {
		http.Error(w,
			fmt.Sprintf("not all services log with verbosity %d now: %v", level, err), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", level)
}

// nodeLogs are the files below /var/log, or the answer to a query.
func (s *Server) nodeLogs(w http.ResponseWriter, r *http.Request) {
	if !setWriteDeadline(w, s.options.LongWrite) {
		return
	}
	if query := r.URL.Query(); s.options.LogQuery && nodelogs.Asks(query) {
		q, err := nodelogs.ParseQuery(query)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		release, free := s.queries.take("")
		if !free {
			s.refuseBusy(w, "query")
			return
		}
		defer release()
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		if err := s.options.NodeLogs.Write(r.Context(), w, q); err != nil {
			s.options.Log.Debug("node log not delivered", logkey.Err, err)
		}
		return
	}
	http.StripPrefix("/logs", http.FileServer(s.options.NodeLogs.Files)).ServeHTTP(w, r)
}
