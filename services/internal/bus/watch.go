package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

const (
	// liveBuffer is how many messages may wait for a watch before some are dropped, upon which the
	// watch begins anew.
	liveBuffer = 4096
	// auditPeriod is how often a watch compares what it heard with what the bucket holds.
	auditPeriod = 15 * time.Second
	// auditGrace is how long what the bucket holds may take to be heard as well.
	auditGrace = time.Second
)

// followUps are when a list is continued after the subscription, before the audits: what was under way
// then is stored within milliseconds, or seconds if the bus has much to do.
var followUps = []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond, time.Second}

var (
	errDeaf     = errors.New("the bucket changed and the watch did not hear it")
	errTooLarge = errors.New("the entry is larger than the contract allows")
	errSlow     = errors.New("the watch was too slow for the bucket's changes")
)

// watch keeps a view equal to its bucket.
//
// It subscribes to the bucket's subjects, and only then lists the bucket. The subscription lives exactly
// as long as the connection does: a bucket that a new bus created anew is heard like the old one.
//
// All that was acknowledged before is in the list, and what is put later is heard. Between them is a
// gap: JetStream stores a message some time after the server has passed it to its subscribers, so one
// that was under way is neither heard nor in the list. Hence the list is continued a few times, soon
// and then at each audit. An audit that finds a change which should have been heard has found a deaf watch.
type watch struct {
	c      *Client
	bucket string
	keys   string
	view   *store
	audit  time.Duration // Options.AuditPeriod
	slow   chan struct{}
	subs   []*nats.Subscription // under c.mu
}

func (w *watch) overrun(sub *nats.Subscription) {
	if slices.Contains(w.subs, sub) {
		select {
		case w.slow <- struct{}{}:
		default:
		}
	}
}

func (w *watch) setSubs(subs []*nats.Subscription) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.subs = subs
}

// owners are those of the keys that are watched.
func (w *watch) owners() []role.Role { return w.view.contract.OwnersOf(w.keys) }

// subscribe hears, on one channel, the keys that are watched and their owners' epoch marks.
func (w *watch) subscribe(nc *nats.Conn, live chan *nats.Msg) (unsubscribe func(), err error) {
	keys := []string{w.keys}
	if w.keys != ">" {
		for _, owner := range w.owners() {
			keys = append(keys, subject.EpochKeys(owner))
		}
	}
	var subs []*nats.Subscription
	unsubscribe = func() {
		w.setSubs(nil)
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
	}
	for _, key := range keys {
		sub, err := nc.ChanSubscribe(subject.Entry(w.bucket, key), live)
		if err != nil {
			unsubscribe()
			return nil, fmt.Errorf("watch %s: %w", w.bucket, err)
		}
		subs = append(subs, sub)
	}
	w.setSubs(subs)
	return unsubscribe, nil
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
		w.c.log.Warn("a watch begins anew", "bucket", w.bucket, "error", err)
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
	unsubscribe, err := w.subscribe(s.nc, live)
	if err != nil {
		return false, err
	}
	defer unsubscribe()
	inbox, answer, answerSub, err := answers(s.nc)
	if err != nil {
		return false, err
	}
	defer func() { _ = answerSub.Unsubscribe() }()

	l := newListing(s.nc, w.c.opts.Role, w.bucket, w.owners(), inbox)
	if err := l.begin(); err != nil {
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
	continued := 0
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
			if err == nil && m.Size()-len(m.Subject)-len(m.Reply) > int(w.view.contract.MaxEntry) {
				err = errTooLarge // no stream has stored it
			}
			if !w.view.authentic(e, err) || !w.view.fits(e) {
				continue
			}
			heard[e.key] = true
			w.view.apply(e)
		case m := <-answer:
			timeout.Reset(answerTimeout)
			from := l.owner()
			subj, done, err := l.take(m)
			if err != nil {
				return synced, err
			}
			if subj != "" {
				e, err := parseEntry(subj, m)
				if !w.view.authentic(e, err) || !w.view.owns(from, e) {
					continue
				}
				if !synced {
					listed[e.key] = true
				}
				if heard[e.key] {
					continue // what was heard is at least as new
				}
				if continued > len(followUps) && w.view.lacks(e) {
					unheard[e.key] = e
				}
				w.view.apply(e)
			}
			if !done {
				continue
			}
			listing = false
			if l.failed != nil {
				w.view.unlisted(l.failed)
			}
			if !synced {
				synced = true
				w.view.dropUnlisted(listed, heard)
				w.view.setSynced(true)
				listed = nil
			}
			switch {
			case continued < len(followUps):
				audit.Reset(followUps[continued])
			case len(unheard) > 0:
				audit.Reset(auditGrace)
			default:
				audit.Reset(w.nextAudit())
			}
		case <-audit.C:
			for key := range unheard {
				// The value is known by now. What matters is that it did not come by itself.
				if !heard[key] {
					return synced, fmt.Errorf("%w: key %s", errDeaf, key)
				}
			}
			clear(unheard)
			clear(heard)
			continued++
			listing = true
			timeout.Reset(answerTimeout)
			if err := l.begin(); err != nil {
				return synced, err
			}
		}
	}
}

// nextAudit spreads the audits of a process's watches.
func (w *watch) nextAudit() time.Duration { return w.audit/2 + rand.N(w.audit) }
