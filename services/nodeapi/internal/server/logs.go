package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/nodeapi/internal/containerlogs"
)

// gateSplitStreams lets a caller have one of the two streams of a log.
const gateSplitStreams = "PodLogsQuerySplitStreams"

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	options, err := containerlogs.ParseOptions(r.URL.Query())
	switch {
	case errors.Is(err, containerlogs.ErrInvalid):
		http.Error(w, fmt.Sprintf(`{"message": "Invalid request.", "reason": %q}`, err), http.StatusUnprocessableEntity)
		return
	case err != nil:
		http.Error(w, fmt.Sprintf(`{"message": "Unable to decode query.", "reason": %q}`, err), http.StatusBadRequest)
		return
	}
	p, ok := s.options.Pods.ByName(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok && !s.options.Pods.Known() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the node's pods are not known yet", http.StatusServiceUnavailable)
		return
	}
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	name := r.PathValue("container")
	if podutil.Container(&p.Spec, name) == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", name, p.Name), http.StatusNotFound)
		return
	}
	one := options.Stream != nil && *options.Stream != v1.LogStreamAll
	if one && !s.options.Gate(gateSplitStreams) {
		http.Error(w,
			fmt.Sprintf("unable to return the given log stream: %q. Please enable PodLogsQuerySplitStreams feature "+
				"gate in kubelet", *options.Stream), http.StatusBadRequest)
		return
	}
	id, err := containerlogs.ID(p, name, options.Previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := s.newBatch(w)
	defer out.deliver()
	var stdout, stderr io.Writer = out, out
	if one {
		if *options.Stream == v1.LogStreamStdout {
			stderr = nil
		} else {
			stdout = nil
		}
	}
	if err := out.begin(); err != nil {
		return
	}
	container := containerlogs.Container{ID: id, Labels: named(r, p).Container(name)}
	err = s.options.Logs.Read(r.Context(), container, options, stdout, stderr)
	if err != nil && r.Context().Err() == nil {
		s.options.Log.Info("log was not read to its end", logkey.Pod, p.Namespace+"/"+p.Name, logkey.Container, name,
			logkey.Err, err)
		if errors.Is(err, containerlogs.ErrForeign) {
			s.foreign.Inc()
		}
		_, _ = out.Write([]byte(err.Error())) // the only place that is left to report it
	}
}
