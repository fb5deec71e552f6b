package diskusage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/microlet/microlet/services/internal/childpool"
)

// maxWalkers bounds the children of a Walker, those that were left behind included.
const maxWalkers = 4

// Walker measures directories at once, where a Measurer does it again and again.
//
// The program must call RunChild first of all, since the children are of its own binary.
type Walker struct {
	pool *childpool.Pool
	hung time.Duration
}

// NewWalker returns a Walker that has no child yet.
func NewWalker(log *slog.Logger) *Walker {
	bounds := childpool.Bounds{
		Children: maxWalkers, Quick: maxWalkers, Slow: silentAfter, Lane: maxWalkers, Foreign: maxWalkers,
	}
	return &Walker{hung: hungAfter, pool: childpool.New(childpool.Options{Program: program, Bounds: bounds, Log: log})}
}

// Walk measures the directories one after the other, in a child of their own, until ctx ends. One that is not there
// takes nothing. A child that hangs is left behind. What comes with an error is what was seen until then.
func (w *Walker) Walk(ctx context.Context, dirs []Dir) (map[Dir]Usage, error) {
	child, err := w.pool.Session()
	if err != nil {
		return nil, err
	}
	defer child.End()
	all := make(map[Dir]Usage, len(dirs))
	for i, d := range dirs {
		q := &request{Walk: uint64(i), Path: d.Path, Mode: d.Mode, Entries: maxSlice}
		if all[d], err = w.measure(ctx, child, q); err != nil {
			return all, fmt.Errorf("measure %s: %w", d.Path, err)
		}
	}
	return all, nil
}

// measure asks for one slice after the other until the walk has ended. It returns what was seen with an error, too.
func (w *Walker) measure(ctx context.Context, child *childpool.Session, q *request) (seen Usage, err error) {
	for {
		a, err := q.ask(ctx, child, w.hung)
		switch {
		case err != nil:
			return seen, err
		case a.Gone:
			return Usage{}, nil
		case a.Error != "":
			return seen, errors.New(a.Error)
		case a.Done:
			return a.Usage, nil
		}
		seen = a.Usage
	}
}
