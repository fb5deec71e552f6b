package bus

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
)

// View is what a service knows of another's bucket. Its methods may be called from any goroutine.
//
// It holds its last values while the bus is away, and drops a key only when it hears of its delete or
// when the key's writer has said, by its epoch mark, that it no longer has it.
type View[M any] struct{ s *store }

// Watch returns the view of the keys of a bucket that match a pattern, ">" for all, and keeps it current
// while the client runs. changed, if not nil, is called after a key's value has changed or the key is
// gone, from one goroutine, which it must not block; it is not called for the same bytes again.
func Watch[T any, M interface {
	*T
	proto.Message
}](c *Client, bucket, keys string, changed func(key string)) *View[M] {
	return WatchDecoded(c, bucket, keys, func(_ string, value []byte) (M, error) {
		m := M(new(T))
		return m, proto.Unmarshal(value, m)
	}, changed)
}

// WatchDecoded is Watch for values that decode makes of an entry's key and bytes. It is called once for each change of
// a value, from the goroutine that calls changed, and must not keep the bytes. If it fails, the value before holds.
func WatchDecoded[M any](c *Client, bucket, keys string, decode func(key string, value []byte) (M, error),
	changed func(key string)) *View[M] {
	s := &store{
		c: c, bucket: bucket, keys: keys, changed: changed,
		items: map[string]*item{}, marks: map[string]int64{}, held: map[role.Role]int64{},
		decode: func(key string, value []byte) (any, error) { return decode(key, value) },
	}
	contract, ok := subject.BucketNamed(bucket)
	if !ok || len(contract.OwnersOf(keys)) == 0 {
		panic(fmt.Sprintf("watch of %s/%s: the contract has no such keys", bucket, keys)) // a bug that every start shows
	}
	s.contract = contract
	w := &watch{c: c, bucket: bucket, keys: keys, view: s, audit: c.opts.AuditPeriod, slow: signal.New()}
	s.w = w
	c.mu.Lock()
	c.watches[w] = struct{}{}
	c.mu.Unlock()
	c.start("watch of "+bucket, w.run)
	return &View[M]{s}
}

// Get returns the value of key. It is shared: do not change it.
func (v *View[M]) Get(key string) (M, bool) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if it := v.s.items[key]; it != nil {
		return it.message.(M), true
	}
	var none M
	return none, false
}

// All returns every value by its key. The map is the caller's, the values are shared.
func (v *View[M]) All() map[string]M {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	all := make(map[string]M, len(v.s.items))
	for key, it := range v.s.items {
		all[key] = it.message.(M)
	}
	return all
}

// Synced reports whether all that the bucket held has been seen on the connection of now. While the bus is
// away it is false, and the values are those of before.
func (v *View[M]) Synced() bool {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return v.s.synced
}

// Complete reports whether a writer has said, by its epoch mark, that it has put all of its keys. It stays true.
func (v *View[M]) Complete() bool {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return len(v.s.marks) > 0
}

// Received returns when key was put last, by this process's own clock: what it had received before
// counts from when it came, what was in the bucket before the watch, from the watch's start. It is
// the zero time when there is no such key.
func (v *View[M]) Received(key string) time.Time {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if it := v.s.items[key]; it != nil {
		return it.received
	}
	return time.Time{}
}

// Age is how long key has not been put while this view could have heard it: the time during which the
// bus was away does not count, and after its return the count starts again. It is zero while the view is not in sync;
// ok is false when there is no such key.
func (v *View[M]) Age(key string) (age time.Duration, ok bool) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	it := v.s.items[key]
	if it == nil {
		return 0, false
	}
	if !v.s.synced {
		return 0, true
	}
	since := it.received
	if v.s.syncedAt.After(since) {
		since = v.s.syncedAt
	}
	return time.Since(since), true
}

// Traceparent is that of the span in which key was put; empty if there is none.
func (v *View[M]) Traceparent(key string) string {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if it := v.s.items[key]; it != nil {
		return it.traceparent
	}
	return ""
}

// store is a view without its type.
type store struct {
	c        *Client
	w        *watch
	bucket   string
	keys     string
	contract subject.Bucket
	decode   func(key string, value []byte) (any, error)
	changed  func(key string)

	mu    sync.RWMutex
	items map[string]*item
	marks map[string]int64 // newest epoch mark by writer
	// held is how many bytes of each owner the view holds. It is bounded as its part of the bucket is: what is heard
	// has not been judged by the stream.
	held     map[role.Role]int64
	rejected time.Time // when a rejection was logged last
	synced   bool
	// syncedAt is when synced became true last.
	syncedAt time.Time
}

type item struct {
	message  any
	raw      []byte
	writer   string
	epoch    int64
	rev      uint64
	received time.Time
	// traceparent is of the span in which it was put.
	traceparent string
}

func (s *store) setSynced(synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if synced && !s.synced {
		s.syncedAt = time.Now()
	}
	s.synced = synced
}

// authentic reports whether an entry may be applied: it could be read, and is signed by a replica of
// the service that owns its key. No one else can put it there; this catches a contract that two versions
// understand differently.
func (s *store) authentic(e entry, err error) bool {
	service, _, signed := subject.ParseWriter(e.writer)
	owner, ok := s.contract.Owner(e.key)
	if err == nil && ok && signed && owner == service {
		return true
	}
	s.reject(e, err)
	return false
}

// owns reports whether an entry that an owner's part of the bucket listed is that owner's.
func (s *store) owns(from role.Role, e entry) bool {
	if owner, ok := s.contract.Owner(e.key); ok && owner == from {
		return true
	}
	s.reject(e, fmt.Errorf("the part of %s holds a key that is not its own", from))
	return false
}

// fits reports whether an entry fits into so many parts of the bucket as its owner has, which is one.
//
// A delete always fits: it is not stored.
func (s *store) fits(e entry, parts int64) bool {
	owner, _ := s.contract.Owner(e.key)
	if s.hasRoom(owner, e, parts) {
		return true
	}
	s.reject(e, errors.New("its owner has filled its part of the bucket"))
	return false
}

func (s *store) hasRoom(owner role.Role, e entry, parts int64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if subject.IsEpochKey(e.key) {
		_, known := s.marks[e.writer]
		return known || s.marksOf(owner) < maxMarks
	}
	if e.deleted {
		return true
	}
	held := s.held[owner]
	if old := s.items[e.key]; old != nil {
		held -= old.size(e.key)
	}
	return held+e.size() <= parts*s.contract.MaxBytes
}

// marksOf counts the writers of an owner that have a mark, under s.mu.
func (s *store) marksOf(owner role.Role) int {
	n := 0
	for writer := range s.marks {
		if r, _, _ := subject.ParseWriter(writer); r == owner {
			n++
		}
	}
	return n
}

const (
	// maxMarks bounds the writers of an owner: its replicas, also those that are gone.
	maxMarks = 128
	// entryOverhead is what an entry takes beside its bytes, so that many small ones are bounded too. No bucket comes
	// near its bound by it: its keys are those of a node's pods, containers and services.
	entryOverhead = 512
)

func (it *item) size(key string) int64 {
	return entryOverhead + int64(len(key)+len(it.raw)+len(it.traceparent))
}

func (e *entry) size() int64 {
	return entryOverhead + int64(len(e.key)+len(e.value)+len(e.traceparent))
}

// set replaces or, with nil, removes what the view holds of a key, under s.mu.
func (s *store) set(key string, it *item) {
	owner, _ := s.contract.Owner(key)
	if old := s.items[key]; old != nil {
		s.held[owner] -= old.size(key)
	}
	if it == nil {
		delete(s.items, key)
		return
	}
	s.held[owner] += it.size(key)
	s.items[key] = it
}

// unlisted says that an owner's part could not be listed, while the others were.
func (s *store) unlisted(err error) {
	if s.mayLog() {
		s.c.log.Error("a part of a bucket cannot be listed", "bucket", s.bucket, logkey.Err, err)
	}
}

// mayLog limits what others can write into this service's log.
func (s *store) mayLog() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.rejected) < rejectLogPeriod {
		return false
	}
	s.rejected = time.Now()
	return true
}

// rejectLogPeriod is how often a view logs what it rejects. All is counted.
const rejectLogPeriod = 10 * time.Second

func (s *store) reject(e entry, err error) {
	s.c.metrics.rejected.WithLabelValues(s.bucket).Inc()
	if !s.mayLog() {
		return
	}
	s.c.log.Error("an entry of the bus is not what its key holds", "bucket", s.bucket, "key", e.key, "writer", e.writer,
		logkey.Err, err)
}

// older reports whether e is from before what is known of its key: the same writer has said something
// newer. Entries of different writers are taken in the order in which they come.
func (it *item) older(e entry) bool {
	return it.writer == e.writer && (e.epoch < it.epoch || e.epoch == it.epoch && e.rev < it.rev)
}

// apply takes an entry into the view.
func (s *store) apply(e entry) {
	if subject.IsEpochKey(e.key) {
		s.dropOlder(e.writer, e.epoch)
		return
	}
	if !subject.Matches(s.keys, e.key) {
		return
	}
	if e.deleted {
		s.drop(e)
		return
	}
	message, same, err := s.message(e)
	if err != nil {
		s.reject(e, fmt.Errorf("it cannot be decoded, and the value before holds: %w", err))
		return
	}
	s.mu.Lock()
	old := s.items[e.key]
	if old != nil && old.older(e) || e.epoch < s.marks[e.writer] {
		s.mu.Unlock()
		return
	}
	again := old != nil && old.writer == e.writer && old.epoch == e.epoch && old.rev == e.rev
	it := &item{message: message, raw: e.value, writer: e.writer, epoch: e.epoch, rev: e.rev, received: time.Now(),
		traceparent: e.traceparent}
	if again {
		it.received = old.received // the bucket's copy of what was heard before
	}
	s.set(e.key, it)
	s.mu.Unlock()
	if !same {
		s.notify(e.key)
	}
}

// message returns what an entry says, and whether the view has the same bytes already. They are not decoded again:
// after a reconnect, all of a bucket comes once more. Only apply changes items, so they stay the same meanwhile.
func (s *store) message(e entry) (message any, same bool, err error) {
	s.mu.RLock()
	old := s.items[e.key]
	s.mu.RUnlock()
	if old != nil && bytes.Equal(old.raw, e.value) {
		return old.message, true, nil
	}
	message, err = s.decode(e.key, e.value)
	return message, false, err
}

func (s *store) drop(e entry) {
	s.mu.Lock()
	old := s.items[e.key]
	if old == nil || old.older(e) {
		s.mu.Unlock()
		return
	}
	s.set(e.key, nil)
	s.mu.Unlock()
	s.notify(e.key)
}

// dropOlder drops stale keys: at a writer's mark, the keys of its older epochs are gone.
func (s *store) dropOlder(writer string, epoch int64) {
	s.mu.Lock()
	if epoch <= s.marks[writer] {
		s.mu.Unlock()
		return
	}
	s.marks[writer] = epoch
	var stale []string
	for key, it := range s.items {
		if it.writer == writer && it.epoch < epoch {
			stale = append(stale, key)
			s.set(key, nil)
		}
	}
	s.mu.Unlock()
	s.dropped(stale)
}

// dropUnlisted drops, after a full listing, the keys that the bucket does not hold although their
// writer's mark shows that it has seen all of them: their delete, or their TTL, has passed meanwhile.
func (s *store) dropUnlisted(listed, heard map[string]bool) {
	s.mu.Lock()
	var stale []string
	for key, it := range s.items {
		mark := s.marks[it.writer]
		if !listed[key] && !heard[key] && listed[subject.EpochKeyOf(it.writer)] && it.epoch <= mark {
			stale = append(stale, key)
			s.set(key, nil)
		}
	}
	s.mu.Unlock()
	s.dropped(stale)
}

func (s *store) dropped(stale []string) {
	if len(stale) == 0 {
		return
	}
	s.c.metrics.stale.WithLabelValues(s.bucket).Add(float64(len(stale)))
	s.c.log.Info("dropped keys that their writer no longer has", "bucket", s.bucket, "keys", len(stale))
	for _, key := range stale {
		s.notify(key)
	}
}

// lacks reports whether the view does not know what e says, nor anything newer.
func (s *store) lacks(e entry) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if subject.IsEpochKey(e.key) {
		return s.marks[e.writer] < e.epoch
	}
	if !subject.Matches(s.keys, e.key) || e.epoch < s.marks[e.writer] {
		return false
	}
	it := s.items[e.key]
	if e.deleted {
		return it != nil && it.writer == e.writer && !it.older(e)
	}
	return it == nil || it.writer != e.writer || it.epoch < e.epoch || it.epoch == e.epoch && it.rev < e.rev
}

func (s *store) notify(key string) {
	if s.changed != nil {
		s.changed(key)
	}
}
