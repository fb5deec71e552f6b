package diskusage

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// maxWalkers bounds the children of a Walker, those that were left behind included.
const maxWalkers = 4

// Errors of a Walker.
var (
	errHangs  = errors.New("the child that measures it does not answer")
	errBroken = errors.New("the child that measures it has ended")
	errBusy   = errors.New("the children that measured others do not end")
)

// Walker measures directories at once, where a Measurer does it again and again. The zero value is ready.
//
// The program must call RunChild first of all, since the children are of its own binary.
type Walker struct {
	children atomic.Int32

	hung time.Duration // 0: hungAfter; tests set it
}

// Walk measures the directories one after the other, in a child of their own, until ctx ends. One that is not there
// takes nothing. A child that hangs is left behind. What comes with an error is what was seen until then.
func (w *Walker) Walk(ctx context.Context, dirs []Dir) (map[Dir]Usage, error) {
	if w.children.Add(1) > maxWalkers {
		w.children.Add(-1)
		return nil, errBusy
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan *answer)
	p, err := launch(func(a *answer) {
		if a == nil {
			w.children.Add(-1)
		}
		select {
		case answers <- a:
		case <-ctx.Done():
		}
	})
	if err != nil {
		w.children.Add(-1)
		return nil, err
	}
	defer p.kill()
	all := make(map[Dir]Usage, len(dirs))
	for i, d := range dirs {
		if all[d], err = w.measure(ctx, p, answers, request{Walk: uint64(i), Path: d.Path, Mode: d.Mode}); err != nil {
			return all, fmt.Errorf("measure %s: %w", d.Path, err)
		}
	}
	return all, nil
}

// measure asks for one slice after the other until the walk has ended. It returns what was seen with an error, too.
func (w *Walker) measure(ctx context.Context, p process, answers <-chan *answer, q request) (Usage, error) {
	q.Entries = maxSlice
	hung := w.hung
	if hung == 0 {
		hung = hungAfter
	}
	var seen Usage
	for {
		if err := p.ask(q); err != nil {
			return seen, err
		}
		select {
		case a := <-answers:
			switch {
			case a == nil || a.Walk != q.Walk:
				return seen, errBroken
			case a.Gone:
				return Usage{}, nil
			case a.Error != "":
				return seen, errors.New(a.Error)
			case a.Done:
				return a.Usage, nil
			}
			seen = a.Usage
		case <-time.After(hung):
			return seen, errHangs
		case <-ctx.Done():
			return seen, ctx.Err()
		}
	}
}
