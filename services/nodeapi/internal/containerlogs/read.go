package containerlogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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

// podsync opens the log of a container with this ID, because this process may not open the file. The error is a status.
type Podsync interface {
	Open(ctx context.Context, id string) (*os.File, error)
}

// Reader reads logs. Its zero value with a Runtime and a Podsync is ready. It is safe for concurrent use.
type Reader struct {
	Runtime Runtime
	Podsync Podsync
	// Folder is where all container logs are: podLogsDir. A path that the runtime names elsewhere is
	// not read.
	Folder string

	busy atomic.Int64 // how many of those who follow had something to read in their last round
}

// A log that is followed is read in rounds. The time between two that bring something bounds what followers cost,
// however fast containers write and however many they are. A line after a silence is not held up.
const (
	// roundPause is the time between two rounds of few followers: no reader needs more than ten states a second.
	roundPause = 100 * time.Millisecond
	// roundsTogether is how many rounds all followers make in a second at most, as long as no follower waits longer than
	// maxPause for that.
	roundsTogether = 500
	maxPause       = 2 * time.Second
)

// phase sets this process's rounds apart from those of other nodes, because their clocks agree with this one.
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

// ErrForeign is wrapped by the error for a container that does not belong to the given pod.
var ErrForeign = errors.New("it is another pod's container")

// Container is a container with a log to read.
type Container struct {
	// ID is as pods' statuses have it, with the runtime's scheme.
	ID string
	// Labels are what the container must have in the runtime.
	Labels map[string]string
}

// Read writes the log of the container until its end, or, following, until the container has ended and all is written,
// or ctx ends. A nil writer's stream is left out. A writer that is a Follower is called after each round, but the last.
func (r *Reader) Read(ctx context.Context, c Container, o *v1.PodLogOptions, stdout, stderr io.Writer) error {
	id := c.ID
	answer, err := r.Runtime.Status(ctx, bare(id))
	if err != nil {
		return fmt.Errorf("unable to retrieve container logs for %s: %w", id, err)
	}
	for label, want := range c.Labels {
		if answer.GetStatus().GetLabels()[label] != want {
			return fmt.Errorf("log of container %s: %w: its label %s is not %q", id, ErrForeign, label, want)
		}
	}
	path := answer.GetStatus().GetLogPath()
	if path == "" {
		return fmt.Errorf("container %s has no log file", id)
	}
	below, err := filepath.Rel(r.Folder, path)
	if err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("log of container %s: %s is not below %s", id, path, r.Folder)
	}
	f := &file{folder: r.Folder, path: below, byPodsync: func(ctx context.Context) (*os.File, error) {
		return r.Podsync.Open(ctx, bare(id))
	}}
	if err := f.open(ctx); err != nil {
		return fmt.Errorf("log of container %s: %w", id, err)
	}
	defer f.close()
	s := &state{reader: r, id: bare(id), followers: followers(stdout, stderr)}
	defer s.setBusy(false)
	return read(ctx, f, s, newPrinter(o, stdout, stderr, time.Now()), o)
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
