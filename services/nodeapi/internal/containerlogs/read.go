package containerlogs

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
)

// Runtime tells of containers.
type Runtime interface {
	Status(ctx context.Context, id string) (*runtimeapi.ContainerStatusResponse, error)
}

// Reader reads logs. Its zero value with a Runtime is ready.
type Reader struct {
	Runtime Runtime
	// Folder is where all container logs are: podLogsDir. A path that the runtime names elsewhere is
	// not read.
	Folder string
}

// Read writes the log of the container with this id, as pods' statuses have it, until its end, or, following, until the container
// has ended and all is written, or ctx ends. A nil writer's stream is left out.
func (r Reader) Read(ctx context.Context, id string, o *v1.PodLogOptions, stdout, stderr io.Writer) error {
	answer, err := r.Runtime.Status(ctx, bare(id))
	if err != nil {
		return fmt.Errorf("unable to retrieve container logs for %s: %w", id, err)
	}
	path := answer.GetStatus().GetLogPath()
	if path == "" {
		return fmt.Errorf("container %s has no log file", id)
	}
	if path, err = r.inside(path); err != nil {
		return fmt.Errorf("log of container %s: %w", id, err)
	}
	// The library logs the line that it could not parse or write, which is the pod's and for nobody else.
	ctx = klog.NewContext(ctx, logr.Discard())
	return logs.ReadLogs(ctx, path, bare(id), readOptions(o, time.Now()), statusOnly{runtime: r.Runtime}, stdout, stderr)
}

// readOptions are the API's options as the library has them.
func readOptions(o *v1.PodLogOptions, now time.Time) *logs.LogOptions {
	r := &logs.LogOptions{TailLines: o.TailLines, LimitBytes: o.LimitBytes, Follow: o.Follow, Timestamp: o.Timestamps}
	if o.SinceSeconds != nil {
		r.Since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	if o.SinceTime != nil && o.SinceTime.After(r.Since) {
		r.Since = o.SinceTime.Time
	}
	return r
}

// inside is where a log is once all links are followed: a file below the folder. A pod that may write into the
// folder, by a hostPath volume, could else have this process read, or wait for, what it names. Who changes
// the link at the very moment still can, and sees nothing that is not written as a log is.
func (r Reader) inside(path string) (string, error) {
	if !within(r.Folder, path) {
		return "", fmt.Errorf("%s is not below %s", path, r.Folder)
	}
	folder, err := filepath.EvalSymlinks(r.Folder)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if !within(folder, real) {
		return "", fmt.Errorf("%s leads to %s, which is not below %s", path, real, r.Folder)
	}
	info, err := os.Lstat(real)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file: its mode is %s", path, info.Mode())
	}
	return real, nil
}

// within says whether a clean path leads below the folder.
func within(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// statusOnly is the runtime service of which the library's reader asks a container's status and
// nothing else, to learn when there is no more to come.
type statusOnly struct {
	internalapi.RuntimeService
	runtime Runtime
}

// ContainerStatus implements internalapi.RuntimeService.
func (s statusOnly) ContainerStatus(ctx context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	return s.runtime.Status(ctx, id)
}
