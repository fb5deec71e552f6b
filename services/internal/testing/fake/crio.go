package fake

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ActAsCRIO gives the runtime the manners of CRI-O where CRI leaves the choice; without it they are containerd's.
//
// Containers have a log from their creation on, for root alone (0600), which WriteLog writes to, and a reopened log is
// renamed into its place. The verbose status is CRI-O's, and what a container runs as is only there. The stream of
// events ends at once, as where enable_pod_events is off. A command that takes too long exits with -1. Errors have
// CRI-O's words. It is called before any other method.
func (r *Runtime) ActAsCRIO() { r.crio = true }

// logMode is that of logs which CRI-O's monitor makes.
const logMode = 0o600

// openLog gives a new container its log. The caller holds mu.
func (c *container) openLog() (err error) {
	if c.config.LogPath == "" {
		return nil
	}
	path := c.status().LogPath
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	c.log, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, logMode)
	return err
}

// reopenLog has the container go on in another file. The caller holds mu.
func (c *container) reopenLog() error {
	if c.log == nil {
		return nil
	}
	path := c.status().LogPath
	next, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_TRUNC|os.O_CREATE, logMode)
	if err != nil {
		return err
	}
	err = errors.Join(os.Rename(next.Name(), path), c.log.Close())
	c.log = next
	return err
}

// WriteLog has a container of CRI-O's write a line to its standard output.
func (r *Runtime) WriteLog(id, line string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok || c.log == nil {
		return r.notFound("container with a log", id)
	}
	_, err := fmt.Fprintf(c.log, "%s stdout F %s\n", r.now().Format(time.RFC3339Nano), line)
	return err
}

// notFound is the error for what there is not.
func (r *Runtime) notFound(kind, id string) error {
	if r.crio {
		return status.Errorf(codes.NotFound, "could not find %s %q: %s with ID starting with %s not found: "+
			"ID does not exist", kind, id, kind, id)
	}
	return status.Errorf(codes.NotFound, "an error occurred when try to find %s %q: not found", kind, id)
}

// reserved is the error for a name that another container has.
func (r *Runtime) reserved(name, by string) error {
	if r.crio {
		return fmt.Errorf("error reserving ctr name %s for id %s: name is reserved", name, by)
	}
	return fmt.Errorf("failed to reserve container name %q: it is reserved for %q", name, by)
}

// timedOut is the answer to a command that took too long.
func (r *Runtime) timedOut(seconds int64) (*runtimeapi.ExecSyncResponse, error) {
	if r.crio {
		return &runtimeapi.ExecSyncResponse{Stderr: []byte("command timed out"), ExitCode: -1}, nil
	}
	return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %ds exceeded", seconds)
}

// describeUser adds what a container runs as to its status. The caller holds mu.
func (r *Runtime) describeUser(c *container, to *runtimeapi.ContainerStatusResponse, verbose bool) error {
	user := r.programs[c.config.Metadata.Name].User
	if !r.crio {
		if user != nil {
			to.Status.User = &runtimeapi.ContainerUser{Linux: clone(user)}
		}
		return nil
	}
	if !verbose {
		return nil
	}
	spec := map[string]any{"ociVersion": "1.1.0", "process": map[string]any{"user": map[string]any{
		"uid": user.GetUid(), "gid": user.GetGid(), "additionalGids": user.GetSupplementalGroups(),
	}}}
	info, err := json.Marshal(map[string]any{"sandboxID": c.sandboxID, "pid": 1, "runtimeSpec": spec,
		"privileged": false})
	to.Info = map[string]string{"info": string(info)}
	return err
}
