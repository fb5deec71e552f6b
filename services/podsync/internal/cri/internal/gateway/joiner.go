package gateway

import (
	"context"
	"sync"
	"time"
)

// defaultPatience is how long a list may wait for the one before it. A runtime answers
// a list in milliseconds; one that takes longer than this is in trouble, and then a
// second question beside it does no more harm.
const defaultPatience = time.Second

// joiner lets callers with the same question share one call, as long as that call has
// not been sent: an answer that was begun before a caller asked may be older than what
// the caller has seen happen since.
//
// So of each question at most one call is under way, and at most one waits for its end;
// callers that ask meanwhile join the one that waits.
type joiner struct {
	patience time.Duration
	timeout  time.Duration
	wg       sync.WaitGroup // of calls that are sent or wait to be

	mu    sync.Mutex
	under map[string]*round // sent, not answered
	next  map[string]*round // not sent
}

// round is one call, with those who wait for its answer.
type round struct {
	done    chan struct{}
	answer  answer
	err     error
	callers int
	// ctx ends when no caller waits any more, or when the time is over.
	ctx    context.Context
	cancel context.CancelFunc
}

func newJoiner(patience, timeout time.Duration) *joiner {
	return &joiner{patience: patience, timeout: timeout, under: map[string]*round{}, next: map[string]*round{}}
}

// do returns the answer of a call to send that begins after do was called. ctx bounds this caller's wait only. The call
// carries nothing of it: what one caller sends beside its question must not decide what the others are answered.
func (j *joiner) do(ctx context.Context, question string, send func(context.Context) (answer, error)) (answer, error) {
	j.mu.Lock()
	r := j.next[question]
	if r == nil {
		r = &round{done: make(chan struct{})}
		r.ctx, r.cancel = context.WithTimeout(context.Background(), j.timeout)
		before := j.under[question]
		if before == nil {
			j.under[question] = r
		} else {
			j.next[question] = r
		}
		j.wg.Go(func() { j.run(r, before, question, send) })
	}
	r.callers++
	j.mu.Unlock()

	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
		j.mu.Lock()
		defer j.mu.Unlock()
		if r.callers--; r.callers == 0 {
			r.cancel()
			// A call without a waiting caller must not be joined: it would be cancelled.
			if j.next[question] == r {
				delete(j.next, question)
			}
		}
		return answer{}, ctx.Err()
	}
}

// run sends the call of r once the one before it has ended, or patience has.
func (j *joiner) run(r, before *round, question string, send func(context.Context) (answer, error)) {
	defer close(r.done)
	defer r.cancel()
	if before != nil {
		patience := time.NewTimer(j.patience)
		defer patience.Stop()
		select {
		case <-before.done:
		case <-patience.C:
		case <-r.ctx.Done():
		}
		j.mu.Lock()
		if j.next[question] == r {
			delete(j.next, question)
		}
		j.under[question] = r
		j.mu.Unlock()
	}
	defer func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.under[question] == r {
			delete(j.under, question)
		}
	}()
	if err := r.ctx.Err(); err != nil {
		r.err = err
		return
	}
	r.answer, r.err = send(r.ctx)
}
