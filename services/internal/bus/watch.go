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
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
)

const (
	// liveBuffer is how many messages may wait for a watch before some are dropped. The watch then restarts. liveBytes is
	// how much they may have.
	liveBuffer = 4096
	liveBytes  = 128 << 20
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
// as long as the connection does: it also receives from a bucket that a new bus has created again.
//
// All that was acknowledged before is in the list, and what is put later is heard. Between them is a
// gap: JetStream stores a message some time after the server has passed it to its subscribers, so one
// that was under way is neither heard nor in the list. Hence the list is continued a few times, soon
// and then at each audit. An audit that finds a change which should have been heard has found a stalled watch.
type watch struct {
	c      *Client
	bucket string
	keys   string
	view   *store
	audit  time.Duration // Options.AuditPeriod
	slow   signal.Signal
	subs   []*nats.Subscription // under c.mu
}

func (w *watch) overrun(sub *nats.Subscription) {
	if slices.Contains(w.subs, sub) {
		w.slow.Set()
	}
}

func (w *watch) setSubs(subs []*nats.Subscription) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.subs = subs
}

// owners are those of the keys that are watched.
func (w *watch) owners() []role.Role { return w.view.contract.OwnersOf(w.keys) }

// buffer is how many messages may wait, each as large as any that an owner may send: what is published is heard whether
// a stream stores it or not. podsync's own are trusted.
func (w *watch) buffer() int {
	most := liveBuffer
	for _, owner := range w.owners() {
		if owner != role.Podsync {
			most = min(most, liveBytes/int(subject.MaxPayloadOf(owner)))
		}
	}
	return most
}

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
			reason = "stalled"
		case errors.Is(err, errSlow):
			reason = "slow"
		default:
			reason = "error"
		}
		failures++
		w.c.log.Warn("a watch restarts", "bucket", w.bucket, logkey.Err, err)
		if !sleep(ctx, s.gone, backoff(failures, retryMin, time.Second)) {
			return nil
		}
	}
}

// follow watches through one session. It returns whether the view was in sync, and why it ended.
func (w *watch) follow(ctx context.Context, s *session) (synced bool, err error) {
	w.slow.Clear()
	live := make(chan *nats.Msg, w.buffer())
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

	list := newListing(s.nc, w.c.opts.Role, w.bucket, w.owners(), inbox)
	if err := list.begin(); err != nil {
		return false, err
	}
	f := newFollowing(w, list)
	defer f.close()
	err = f.run(ctx, s, live, answer)
	return f.synced, err
}

// following is what a watch knows within one session.
type following struct {
	*watch
	list *listing
	// listing: an answer to the list is awaited, until timeout.
	listing bool
	timeout *time.Timer
	// continued counts the continuations of the list; audit is when the next is due.
	continued int
	audits    *time.Timer
	// synced: the first listing is complete, and the view as well.
	synced bool

	// heard are keys that were heard since the listing began, or that an audit awaits: what the list says of them is
	// older. heardSize is what they take, by owner.
	heard     map[string]bool
	heardSize map[role.Role]int64

	listed  map[string]bool  // keys in the first listing
	unheard map[string]entry // entries that an audit found and that were not heard yet
}

func newFollowing(w *watch, list *listing) *following {
	return &following{
		watch: w, list: list, listing: true, timeout: time.NewTimer(answerTimeout), audits: time.NewTimer(time.Hour),
		heard: map[string]bool{}, heardSize: map[role.Role]int64{}, listed: map[string]bool{},
		unheard: map[string]entry{},
	}
}

func (f *following) close() {
	f.timeout.Stop()
	f.audits.Stop()
}

// run returns why the watch ended.
func (f *following) run(ctx context.Context, s *session, live, answer <-chan *nats.Msg) error {
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.gone:
			return errSessionLost
		case <-f.slow:
			return errSlow
		case <-f.timeout.C:
			if f.listing {
				return fmt.Errorf("list %s: no answer in %v", f.bucket, answerTimeout)
			}
		case m := <-live:
			f.hear(m)
		case m := <-answer:
			err = f.takeAnswer(m)
		case <-f.audits.C:
			err = f.continueList()
		}
		if err != nil {
			return err
		}
	}
}

// hear takes a message of the subscription.
func (f *following) hear(m *nats.Msg) {
	e, err := parseEntry(m.Subject, m)
	if err == nil && m.Size()-len(m.Subject)-len(m.Reply) > int(f.view.contract.MaxEntry) {
		err = errTooLarge // no stream has stored it
	}
	if !f.view.authentic(e, err) || !f.view.fits(e, 1) {
		return
	}
	f.remember(e.key)
	f.view.apply(e)
}

// remember keeps in mind that a key was heard, if anything will ask for it: an audit that awaits it, or a list that is
// under way and may say of the key what was before, also of one that was deleted.
//
// It remembers no more of an owner than the owner's part of the bucket, because deletes of keys that never were take
// nothing of that part. From there on, the view may show for a moment what that owner had before: the list's next
// continuation brings what the owner said last.
func (f *following) remember(key string) {
	if _, awaited := f.unheard[key]; awaited {
		f.heard[key] = true
		return
	}
	if !f.listing || f.heard[key] {
		return
	}
	owner, _ := f.view.contract.Owner(key)
	size := entryOverhead + int64(len(key))
	if f.heardSize[owner]+size > f.view.contract.MaxBytes {
		return
	}
	f.heardSize[owner] += size
	f.heard[key] = true
}

// takeAnswer takes a message of the list.
func (f *following) takeAnswer(m *nats.Msg) error {
	f.timeout.Reset(answerTimeout)
	from := f.list.owner()
	subj, done, err := f.list.take(m)
	if err != nil {
		return err
	}
	if subj != "" {
		e, err := parseEntry(subj, m)
		if !f.view.authentic(e, err) || !f.view.owns(from, e) || !f.takeListed(e) {
			return nil
		}
	}
	if done {
		f.endList()
	}
	return nil
}

// takeListed takes an entry of the list, and reports whether it was news.
func (f *following) takeListed(e entry) bool {
	if !f.synced {
		f.listed[e.key] = true
	}
	if f.heard[e.key] {
		return false // what was heard is at least as new
	}
	// The view may still hold as much of an earlier session, which goes with the list's end and the owner's mark.
	if !f.view.fits(e, 2) {
		return false
	}
	if f.continued > len(followUps) && f.view.lacks(e) {
		f.unheard[e.key] = e
	}
	f.view.apply(e)
	return true
}

// endList concludes from a list that is complete, and plans its continuation.
func (f *following) endList() {
	f.listing = false
	if f.list.failed != nil {
		f.view.unlisted(f.list.failed)
	}
	if !f.synced {
		f.synced = true
		f.view.dropUnlisted(f.listed, f.heard)
		f.view.setSynced(true)
		f.listed = nil
	}
	switch {
	case f.continued < len(followUps):
		f.audits.Reset(followUps[f.continued])
	case len(f.unheard) > 0:
		f.audits.Reset(auditGrace)
	default:
		f.audits.Reset(f.nextAudit())
	}
}

// continueList asks for what the bucket has stored since the list, unless the watch has turned out to be stalled.
func (f *following) continueList() error {
	for key := range f.unheard {
		// The value is known by now. What matters is that it did not come by itself.
		if !f.heard[key] {
			return fmt.Errorf("%w: key %s", errDeaf, key)
		}
	}
	clear(f.unheard)
	clear(f.heard)
	clear(f.heardSize)
	f.continued++
	f.listing = true
	f.timeout.Reset(answerTimeout)
	return f.list.begin()
}

// nextAudit spreads the audits of a process's watches.
func (w *watch) nextAudit() time.Duration { return w.audit/2 + rand.N(w.audit) }
