package containerlogs

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	f := &file{folder: r.Folder, path: path}
	if err := f.open(); err != nil {
		return fmt.Errorf("log of container %s: %w", id, err)
	}
	defer f.close()
	s := &state{reader: r, id: bare(id), followers: followers(stdout, stderr)}
	defer s.setBusy(false)
	return read(ctx, f, s, newPrinter(o, stdout, stderr, time.Now()), o)
}

// inside is where a log is once all links are followed: the path below the folder. A pod that may write into the
// folder, by a hostPath volume, could else have this process read, or wait for, what it names.
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
	return filepath.Rel(folder, real)
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

// state asks the runtime for a container's state to learn whether there is more to come, each time that all was read.
type state struct {
	reader    *Reader
	id        string
	followers []Follower
	busy      bool // it is counted among the reader's
}

// running ends the round.
func (s *state) running(ctx context.Context) (bool, error) {
	anything := false
	for _, f := range s.followers {
		some, err := f.CaughtUp()
		if err != nil {
			return false, err
		}
		anything = anything || some
	}
	s.setBusy(anything)
	if anything {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(s.reader.untilRound(time.Now())):
		}
	}
	answer, err := s.reader.Runtime.Status(ctx, s.id)
	if status.Code(err) == codes.Unavailable {
		return true, nil // containers run on while the runtime does not
	}
	return answer.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
}

func (s *state) setBusy(busy bool) {
	switch {
	case busy && !s.busy:
		s.reader.busy.Add(1)
	case !busy && s.busy:
		s.reader.busy.Add(-1)
	}
	s.busy = busy
}
