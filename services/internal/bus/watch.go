package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/subject"
)

const (
	// liveBuffer is how many messages may wait for a watch before some are dropped, upon which the
	// watch begins anew.
	liveBuffer = 8192
	// auditPeriod is how often a watch compares what it heard with what the bucket holds.
	auditPeriod = 15 * time.Second
	// auditGrace is how long what the bucket holds may take to be heard as well.
	auditGrace = time.Second
)

var (
	errDeaf = errors.New("the bucket changed and the watch did not hear it")
	errSlow = errors.New("the watch was too slow for the bucket's changes")
)

// watch keeps a view equal to its bucket.
//
// It subscribes to the bucket's subjects, and only then lists the bucket. So each change is in the
// list or is heard after it, and the subscription lives exactly as long as the connection does: a
// bucket that a new bus created anew is heard like the old one.
type watch struct {
	c      *Client
	bucket string
	keys   string
	view   *store
	audit  time.Duration // auditPeriod but in tests
	slow   chan struct{}
	sub    *nats.Subscription // under c.mu
}

func (w *watch) overrun(sub *nats.Subscription) {
	if w.sub == sub {
		select {
		case w.slow <- struct{}{}:
		default:
		}
	}
}

func (w *watch) setSub(sub *nats.Subscription) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.sub = sub
}

func (w *watch) run(ctx context.Context) error {
	var after uint64
	failures := 0
	reason := ""
	for {
		s := w.c.wait(ctx, after)
		if s == nil {
			return nil
		}
		if reason != "" {
			w.c.metrics.watchRestarts.WithLabelValues(w.bucket, reason).Inc()
		}
		synced, err := w.follow(ctx, s)
		w.view.setSynced(false)
		if ctx.Err() != nil {
			return nil
		}
		if synced {
			failures = 0
		}
		switch {
		case errors.Is(err, errSessionLost):
			reason, after, failures = "reconnect", s.id, 0
			continue
		case errors.Is(err, errDeaf):
			reason = "deaf"
		case errors.Is(err, errSlow):
			reason = "slow"
		default:
			reason = "error"
		}
		failures++
		w.c.log.Warn("a watch begins anew", "bucket", w.bucket, "err", err)
		if !sleep(ctx, s.gone, backoff(failures, retryMin, time.Second)) {
			return nil
		}
	}
}

// follow watches through one session. It returns whether the view was in sync, and why it ended.
func (w *watch) follow(ctx context.Context, s *session) (synced bool, err error) {
	select {
	case <-w.slow:
	default:
	}
	live := make(chan *nats.Msg, liveBuffer)
	sub, err := s.nc.ChanSubscribe(subject.Entries(w.bucket), live)
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", w.bucket, err)
	}
	w.setSub(sub)
	inbox, answer, answerSub, err := answers(s.nc)
	if err != nil {
		_ = sub.Unsubscribe()
		return false, err
	}
	defer func() {
		w.setSub(nil)
		_, _ = sub.Unsubscribe(), answerSub.Unsubscribe()
	}()

	l := &listing{nc: s.nc, bucket: w.bucket, inbox: inbox}
	if err := l.request(); err != nil {
		return false, err
	}
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	audit := time.NewTimer(time.Hour)
	defer audit.Stop()

	heard := map[string]bool{}    // keys heard since the listing began
	listed := map[string]bool{}   // keys in the first listing
	unheard := map[string]entry{} // entries that an audit found and that were not heard yet
	listing := true
	for {
		select {
		case <-ctx.Done():
			return synced, ctx.Err()
		case <-s.gone:
			return synced, errSessionLost
		case <-w.slow:
			return synced, errSlow
		case <-timeout.C:
			if listing {
				return synced, fmt.Errorf("list %s: no answer in %v", w.bucket, answerTimeout)
			}
		case m := <-live:
			e, err := parseEntry(m.Subject, m)
			if !w.view.authentic(e, err) {
				continue
			}
			heard[e.key] = true
			w.view.apply(e)
		case m := <-answer:
			timeout.Reset(answerTimeout)
			subj, done, err := l.take(m)
			if err != nil {
				return synced, err
			}
			if subj != "" {
				e, err := parseEntry(subj, m)
				if !w.view.authentic(e, err) {
					continue
				}
				if !synced {
					listed[e.key] = true
				}
				switch {
				case heard[e.key]: // what was heard is at least as new
				case !synced:
					w.view.apply(e)
				case w.view.lacks(e):
					unheard[e.key] = e
				}
			}
			if !done {
				continue
			}
			listing = false
			if !synced {
				synced = true
				w.view.dropUnlisted(listed, heard)
				w.view.setSynced(true)
				listed, heard = nil, map[string]bool{}
				audit.Reset(w.nextAudit())
			} else if len(unheard) > 0 {
				audit.Reset(auditGrace)
			} else {
				audit.Reset(w.nextAudit())
			}
		case <-audit.C:
			for key, e := range unheard {
				if !heard[key] && w.view.lacks(e) {
					return synced, fmt.Errorf("%w: key %s", errDeaf, key)
				}
			}
			if len(unheard) > 0 {
				clear(unheard)
				audit.Reset(w.nextAudit())
				continue
			}
			clear(heard)
			listing = true
			timeout.Reset(answerTimeout)
			if err := l.request(); err != nil {
				return synced, err
			}
		}
	}
}

// nextAudit spreads the audits of a process's watches.
func (w *watch) nextAudit() time.Duration { return w.audit/2 + rand.N(w.audit) }
