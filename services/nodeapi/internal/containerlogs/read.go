package containerlogs

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
)

// Runtime returns the status of containers.
type Runtime interface {
	Status(ctx context.Context, id string) (*runtimeapi.ContainerStatusResponse, error)
}

// Reader reads logs. Its zero value with a Runtime is ready. It is safe for concurrent use.
type Reader struct {
	Runtime Runtime
	// Folder is where all container logs are: podLogsDir. A path that the runtime names elsewhere is
	// not read.
	Folder string

	busy atomic.Int64 // how many of those who follow had something to read in their last round
}

// A log that is followed is read in rounds. The time between two that bring something bounds what followers cost,
// however fast containers write and however many they are. A line after a silence is not held up.
const (
	// roundPause is the time between two rounds of few followers: nobody reads more than ten states a second.
	roundPause = 100 * time.Millisecond
	// roundsTogether is how many rounds all followers make in a second at most, as long as nobody waits longer than
	// maxPause for that.
	roundsTogether = 500
	maxPause       = 2 * time.Second
)

// phase sets this process's rounds apart from those of other nodes, whose clocks tick as this one's.
var phase = rand.N(maxPause)

// untilRound is the time from now to the next round. It comes for all at the same time, since what is sent to one
// client together, as to the apiserver, shares packets.
func (r *Reader) untilRound(now time.Time) time.Duration {
	pause := time.Duration(r.busy.Load()) * time.Second / roundsTogether
	pause = min(max((pause+roundPause-1).Truncate(roundPause), roundPause), maxPause)
	return pause - (time.Duration(now.UnixNano())+phase)%pause
}

// Follower is a writer that holds back what it is given until CaughtUp says that there is no more for now.
type Follower interface {
	// CaughtUp is called when all that the log has was written, and learns whether that was anything since the last
	// time. An error ends the reading.
	CaughtUp() (anything bool, err error)
}

// Read writes the log of the container with this id, as pods' statuses have it, until its end, or, following, until the
// container has ended and all is written, or ctx ends. A nil writer's stream is left out. A writer that is a Follower
// is called after each round, but the last.
func (r *Reader) Read(ctx context.Context, id string, o *v1.PodLogOptions, stdout, stderr io.Writer) error {
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
	s := &statusOnly{reader: r, followers: followers(stdout, stderr)}
	defer s.setBusy(false)
	return logs.ReadLogs(ctx, path, bare(id), readOptions(o, time.Now()), s, stdout, stderr)
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
func (r *Reader) inside(path string) (string, error) {
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

// within reports whether a clean path leads below the folder.
func within(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// followers are those of the writers that are, each once.
func followers(writers ...io.Writer) []Follower {
	var found []Follower
	for _, w := range writers {
		if f, ok := w.(Follower); ok && !slices.Contains(found, f) {
			found = append(found, f)
		}
	}
	return found
}

// statusOnly is the runtime service of which the library's reader asks a container's status and
// nothing else, to learn whether there is more to come: each time that it has read all.
type statusOnly struct {
	internalapi.RuntimeService
	reader    *Reader
	followers []Follower
	busy      bool // it is counted among the reader's
}

// ContainerStatus implements internalapi.RuntimeService. It ends the round.
func (s *statusOnly) ContainerStatus(ctx context.Context, id string,
	_ bool) (*runtimeapi.ContainerStatusResponse, error) {
	anything := false
	for _, f := range s.followers {
		some, err := f.CaughtUp()
		if err != nil {
			return nil, err
		}
		anything = anything || some
	}
	s.setBusy(anything)
	if anything {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(s.reader.untilRound(time.Now())):
		}
	}
	return s.reader.Runtime.Status(ctx, id)
}

func (s *statusOnly) setBusy(busy bool) {
	switch {
	case busy && !s.busy:
		s.reader.busy.Add(1)
	case !busy && s.busy:
		s.reader.busy.Add(-1)
	}
	s.busy = busy
}
