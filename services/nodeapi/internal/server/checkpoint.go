package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
)

// gateCheckpoint is the API of checkpoints.
const gateCheckpoint = "ContainerCheckpoint"

// checkpoint has the runtime write a container's checkpoint into the kubelet's folder. The runtime does
// so as root; this process neither writes nor reads it.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pod(w, r)
	if !ok {
		return
	}
	name := r.PathValue("container")
	if podutil.Container(&p.Spec, name) == nil {
		http.Error(w, fmt.Sprintf("container %v does not exist", name), http.StatusNotFound)
		return
	}
	var timeout time.Duration
	if given := r.URL.Query()["timeout"]; len(given) > 0 {
		seconds, err := strconv.ParseInt(given[len(given)-1], 10, 32)
		if err != nil {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
			return
		}
		timeout = time.Duration(seconds) * time.Second
	}
	fail := func(err error) {
		s.options.Log.Warn("checkpoint failed", logkey.Pod, p.Namespace+"/"+p.Name, logkey.Container, name,
			logkey.Err, err)
		http.Error(w,
			fmt.Sprintf("checkpointing of %v/%v/%v failed (%v)", p.Namespace, p.Name, name, err), http.StatusInternalServerError)
	}
	id, err := s.options.Runtime.Container(r.Context(), named(r, p), name)
	if err != nil {
		fail(err)
		return
	}
	file := filepath.Join(s.options.Checkpoints,
		fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", p.Name, p.Namespace, name, time.Now().Format(time.RFC3339)))
	if !setWriteDeadline(w, s.options.LongWrite) {
		return
	}
	if err := s.options.Runtime.Checkpoint(r.Context(), id, file, timeout); err != nil {
		fail(err)
		return
	}
	data, err := json.Marshal(map[string][]string{"items": {file}})
	if err != nil {
		fail(err)
		return
	}
	writeJSON(w, data)
}
