package diskusage

import (
	"context"
	"errors"
	"time"

	"github.com/microlet/microlet/services/internal/childpool"
)

const (
	// maxPath is PATH_MAX: the kernel takes no longer one.
	maxPath = 4096
	// maxReason bounds what a child says of an error.
	maxReason = 256
)

// request asks a child for a slice of a walk.
type request struct {
	// Walk is the number of the walk; one that the child does not know begins with Path and Mode.
	Walk uint64 `json:"walk"`
	Path string `json:"path"`
	Mode Mode   `json:"mode"`
	// Entries is how many entries the slice may look at.
	Entries int `json:"entries"`
	// Drop are walks that are no longer wanted.
	Drop []uint64 `json:"drop,omitempty"`
}

// answer says how far the slice went.
type answer struct {
	Walk uint64 `json:"walk"`
	// Entries is how many it looked at.
	Entries int `json:"entries"`
	// Done says that the walk has ended. Usage is what it has seen so far, unless Gone or Error is set.
	Done  bool  `json:"done"`
	Usage Usage `json:"usage"`
	// Gone says that there is no such directory.
	Gone bool `json:"gone,omitempty"`
	// Error says why the directory could not be measured.
	Error string `json:"error,omitempty"`
}

// measureSlice is a slice of a walk. Its path is that of the directory.
var measureSlice = childpool.Operation[request, *answer]{Name: "measure"}

// ask asks a child for the slice, which is killed if it does not answer in time.
func (q *request) ask(ctx context.Context, child *childpool.Session, hung time.Duration) (*answer, error) {
	op := measureSlice
	op.Patience = hung
	a, err := op.Do(ctx, child, q.Path, *q)
	if err != nil {
		return nil, err
	}
	return a, a.check(q)
}

// errAnswer says that a child has answered what cannot be.
var errAnswer = errors.New("answer of a child: out of range")

// check checks what a child says. A child is no more trusted than what it reads.
func (a *answer) check(q *request) error {
	if a == nil || a.Walk != q.Walk || a.Entries < 0 || a.Entries > q.Entries || len(a.Error) > maxReason {
		return errAnswer
	}
	return nil
}
