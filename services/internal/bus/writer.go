package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
)

const (
	// inflightPuts and inflightBytes bound what a writer has under way; more would only queue, before
	// what others have to say. One entry may always go.
	inflightPuts  = 16
	inflightBytes = 4 << 20
	// ackTimeout is how long a bus that lives may take to store an entry, of the largest and on a busy
	// machine. That the bus is gone is noticed otherwise, and sooner.
	ackTimeout = 10 * time.Second
	retryMin   = 50 * time.Millisecond
	retryMax   = 5 * time.Second
	// deleteTTL is how long a delete stays in the bucket, for readers that reconnect meanwhile. One
	// that comes later finds neither key nor delete, and drops the key because its writer's mark is there.
	deleteTTL = 10 * time.Minute
)

// Writer holds what this service says in one bucket, of which each key has no other writer. It
// remembers the newest value of every key, and writes it when the bus is there.
type Writer struct {
	c      *Client
	bucket string
	mark   string // key of this writer's epoch mark
	// maxEntry bounds an entry, in bytes; 0 for a bucket that the contract does not have.
	maxEntry int

	mu        sync.Mutex
	keys      map[string]*ownedKey
	queue     []string // keys to send, each at most once
	unwritten map[string]struct{}
	complete  bool
	marked    int64 // epoch of the mark that the bus has acknowledged
	epoch     int64
	rev       uint64
	wake      signal.Signal
}

// ownedKey is one key as its writer wants it.
type ownedKey struct {
	value []byte
	// traceparent is of the span in which it was put.
	traceparent string
	deleted     bool
	version     uint64 // counts what the writer wanted
	acked       uint64 // version that the bus has, in epoch ackEpoch
	ackEpoch    int64
	queued      bool
	sending     context.CancelFunc // not nil while a put is under way
	denied      bool
	attempts    int
}

// Own returns the writer of a bucket; calls for the same bucket return the same one.
func (c *Client) Own(bucket string) *Writer {
	c.mu.Lock()
	w := c.writers[bucket]
	if w != nil {
		c.mu.Unlock()
		return w
	}
	w = &Writer{
		c: c, bucket: bucket, mark: subject.EpochKey(c.opts.Role, c.opts.Replica),
		keys: map[string]*ownedKey{}, unwritten: map[string]struct{}{}, wake: signal.New(),
	}
	if contract, ok := subject.BucketNamed(bucket); ok {
		w.maxEntry = int(contract.MaxEntry)
	}
	c.writers[bucket] = w
	c.mu.Unlock()
	c.start("writer of "+bucket, w.run)
	return w
}

// Put makes m the value of key. It never blocks: the value is written when the bus is there, and only
// the newest counts. A value with the same bytes as the last put is not written again.
func (w *Writer) Put(key string, m proto.Message) { w.put(key, m, "", false) }

// PutTraced is Put within a trace, of which readers learn by the traceparent; empty is none.
func (w *Writer) PutTraced(key string, m proto.Message, traceparent string) {
	w.put(key, m, traceparent, false)
}

// Refresh is Put, but also writes an unchanged value, for a key that its readers judge by age.
func (w *Writer) Refresh(key string, m proto.Message) { w.put(key, m, "", true) }

func (w *Writer) put(key string, m proto.Message, traceparent string, always bool) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		// It fails for invalid UTF-8 in a string only. The value before holds.
		w.c.metrics.putErrors.WithLabelValues(w.bucket).Inc()
		w.c.log.Error("cannot encode what was put", "bucket", w.bucket, "key", key, logkey.Err, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.keys[key]
	switch {
	case c == nil:
		c = &ownedKey{}
		w.keys[key] = c
	case !always && !c.deleted && bytes.Equal(c.value, value):
		return
	}
	c.value, c.traceparent, c.deleted, c.denied, c.attempts = value, traceparent, false, false, 0
	c.version++
	w.enqueue(key, c)
}

// Delete removes key. It never blocks either, and is repeated until the bus has acknowledged it.
func (w *Writer) Delete(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(key)
}

// Release gives key up without deleting it: another replica of this service writes it from now on, and
// what this one has put last must neither go nor be put again.
func (w *Writer) Release(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.keys[key]; c != nil && c.sending != nil {
		c.sending() // what was sent is sent, without waiting for its acknowledgement
	}
	delete(w.keys, key)
	delete(w.unwritten, key)
	w.wake.Set()
}

func (w *Writer) remove(key string) {
	c := w.keys[key]
	if c == nil {
		c = &ownedKey{}
		w.keys[key] = c
	} else if c.deleted {
		return
	}
	c.value, c.traceparent, c.deleted, c.denied, c.attempts = nil, "", true, false, 0
	c.version++
	w.enqueue(key, c)
}

// Complete says that the keys put so far are all that this writer has. From then on, now and after
// each reconnect, it puts all of them and then its epoch mark, upon which readers drop the keys of its
// earlier lives. Before that, a reader keeps them.
func (w *Writer) Complete() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.complete {
		return
	}
	w.complete = true
	for key, c := range w.keys {
		if !w.written(c) {
			w.unwritten[key] = struct{}{}
		}
	}
	w.wake.Set()
}

// Pending is the number of keys with a newest value that the bus has not acknowledged.
func (w *Writer) Pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending()
}

func (w *Writer) pending() int {
	n := 0
	for _, c := range w.keys {
		if !w.written(c) {
			n++
		}
	}
	return n
}

// Marked reports whether the bus has this writer's epoch mark of the current connection.
func (w *Writer) Marked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch != 0 && w.marked == w.epoch
}

func (w *Writer) written(c *ownedKey) bool { return c.acked == c.version && c.ackEpoch == w.epoch }

func (w *Writer) enqueue(key string, c *ownedKey) {
	if !c.queued && c.sending == nil {
		c.queued = true
		w.queue = append(w.queue, key)
	}
	w.wake.Set()
}

func (w *Writer) deny(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.keys[key]
	if c == nil {
		return
	}
	c.denied = true
	delete(w.unwritten, key)
	if c.sending != nil {
		c.sending()
	}
	w.wake.Set()
}

func (w *Writer) run(ctx context.Context) error {
	var after uint64
	failures := 0
	for {
		s := w.c.wait(ctx, after)
		if s == nil {
			return nil
		}
		err := w.serve(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errSessionLost) {
			after, failures = s.id, 0
			continue
		}
		failures++
		w.c.log.Warn("cannot begin to write a bucket", "bucket", w.bucket, logkey.Err, err)
		if !sleep(ctx, s.gone, backoff(failures, retryMin, time.Second)) {
			return nil
		}
	}
}

// sleep waits for d, or until gone is closed; it returns false when ctx ended.
func sleep(ctx context.Context, gone <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-gone:
	case <-timer.C:
	}
	return true
}

// outcome is the end of one put.
type outcome struct {
	key     string    // the mark's when it was that
	cell    *ownedKey // the key that was put
	version uint64
	size    int
	err     error
}

// serve writes through one session, until it is lost or ctx ends.
func (w *Writer) serve(parent context.Context, s *session) error {
	ctx, cancel := context.WithCancel(parent)
	v := serving{Writer: w, session: s, outcomes: make(chan outcome, inflightPuts+1)}
	defer v.puts.Wait()
	defer cancel()

	if err := w.begin(ctx, s); err != nil {
		select {
		case <-s.gone:
			return errSessionLost
		default:
			return err
		}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		v.start(ctx)
		w.gauge()
		if at := v.due.first(v.markAt); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.gone:
			return errSessionLost
		case <-w.wake:
		case <-timer.C:
			w.again(v.due.take(time.Now()))
		case o := <-v.outcomes:
			v.finish(ctx, o)
		}
	}
}

// serving is a writer's work within one session.
type serving struct {
	*Writer
	session  *session
	puts     sync.WaitGroup
	outcomes chan outcome
	due      retries
	// inflight puts are under way, and have so many bytes.
	inflight, bytes int
	// marking: the put of the mark is under way; else it is due at markAt.
	marking      bool
	markAttempts int
	markAt       time.Time
}

// start starts as many puts as may be under way, and that of the mark when its time has come.
func (v *serving) start(ctx context.Context) {
	for v.inflight < inflightPuts && v.bytes < inflightBytes {
		o, msg, putCtx := v.next(ctx)
		if msg == nil {
			break
		}
		v.inflight++
		v.bytes += o.size
		v.puts.Go(func() {
			o.err = v.send(putCtx, v.session, msg)
			v.outcomes <- o
		})
	}
	if !v.marking && !time.Now().Before(v.markAt) && v.mayMark() {
		v.marking = true
		msg := v.message(v.mark, &ownedKey{})
		v.puts.Go(func() { v.outcomes <- outcome{key: v.mark, err: v.send(ctx, v.session, msg)} })
	}
}

// finish takes the end of a put, and plans another if it failed.
func (v *serving) finish(ctx context.Context, o outcome) {
	if o.key == v.mark {
		v.finishMark(ctx, o.err)
		return
	}
	v.inflight--
	v.bytes -= o.size
	if wait, retry := v.settle(o); retry {
		v.due.add(o.key, time.Now().Add(wait))
	}
}

func (v *serving) finishMark(ctx context.Context, err error) {
	v.marking = false
	if err != nil {
		v.markAttempts++
		v.markAt = time.Now().Add(backoff(v.markAttempts, retryMin, retryMax))
		v.failed(v.mark, err)
		return
	}
	v.markWritten()
	v.puts.Go(func() { v.compare(ctx, v.session) })
}

// retries are the keys to send again, each with its time.
type retries map[string]time.Time

func (r *retries) add(key string, at time.Time) {
	if *r == nil {
		*r = retries{}
	}
	(*r)[key] = at
}

// first returns the earliest time of all, and of also if that is still to come; zero when there is none.
func (r retries) first(also time.Time) time.Time {
	var first time.Time
	if also.After(time.Now()) {
		first = also
	}
	for _, at := range r {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

func (r retries) take(now time.Time) []string {
	var keys []string
	for key, at := range r {
		if !at.After(now) {
			keys = append(keys, key)
			delete(r, key)
		}
	}
	return keys
}

// begin opens an epoch, in which every key must be put again.
func (w *Writer) begin(ctx context.Context, s *session) error {
	// A clock that was set back must not make this life look older than the one before.
	last, err := lastEpoch(ctx, s.nc, w.c.opts.Role, w.bucket, w.mark)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch = max(time.Now().UnixNano(), w.epoch+1, last+1)
	w.rev = 0
	clear(w.unwritten)
	for key, c := range w.keys {
		c.denied, c.sending, c.attempts = false, nil, 0
		if !c.queued {
			c.queued = true
			w.queue = append(w.queue, key)
		}
		w.unwritten[key] = struct{}{}
	}
	return nil
}

// next takes a key from the queue and returns its message, nil when none is left, and the outcome that it will have.
func (w *Writer) next(ctx context.Context) (o outcome, msg *nats.Msg, putCtx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 {
		key := w.queue[0]
		w.queue = w.queue[1:]
		c := w.keys[key]
		if c == nil {
			continue
		}
		c.queued = false
		if c.sending != nil || c.denied || w.written(c) {
			continue
		}
		putCtx, c.sending = context.WithTimeout(ctx, ackTimeout)
		msg := w.messageLocked(key, c)
		return outcome{key: key, cell: c, version: c.version, size: len(msg.Data)}, msg, putCtx
	}
	w.queue = nil
	return outcome{}, nil, nil
}

func (w *Writer) message(key string, c *ownedKey) *nats.Msg {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.messageLocked(key, c)
}

func (w *Writer) messageLocked(key string, c *ownedKey) *nats.Msg {
	w.rev++
	data, err := proto.Marshal(&busv1.Entry{
		Writer: w.c.Writer(), Epoch: w.epoch, Value: c.value, Revision: w.rev, Traceparent: c.traceparent,
	})
	if err != nil {
		panic(fmt.Sprintf("the envelope of %s/%s cannot be encoded: %v", w.bucket, key, err)) // a role and a token are ASCII
	}
	msg := &nats.Msg{Subject: subject.Entry(w.bucket, key), Data: data}
	if c.deleted {
		msg.Header = nats.Header{headerOperation: {operationDelete}, headerTTL: {deleteTTL.String()}}
	}
	return msg
}

// send publishes and waits for JetStream's acknowledgement.
func (w *Writer) send(ctx context.Context, s *session, msg *nats.Msg) error {
	if w.maxEntry > 0 && len(msg.Data) > w.maxEntry {
		return nats.ErrMaxPayload // the bus would cut the connection
	}
	ctx, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	_, err := s.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	return err
}

// settle takes a put's outcome. It returns whether and after which time the key is to be sent again.
func (w *Writer) settle(o outcome) (time.Duration, bool) {
	w.mu.Lock()
	c := w.keys[o.key]
	if c == nil || c != o.cell {
		// The key was given up meanwhile. If it was put again, that put has an outcome of its own.
		w.mu.Unlock()
		return 0, false
	}
	c.sending()
	c.sending = nil
	if o.err == nil {
		c.acked, c.ackEpoch, c.attempts = o.version, w.epoch, 0
		delete(w.unwritten, o.key)
		switch {
		case c.version != o.version:
			w.enqueue(o.key, c)
		case c.deleted:
			delete(w.keys, o.key)
		}
		w.mu.Unlock()
		w.c.metrics.puts.WithLabelValues(w.bucket).Inc()
		return 0, false
	}
	if c.denied {
		w.mu.Unlock()
		w.c.metrics.putErrors.WithLabelValues(w.bucket).Inc()
		return 0, false
	}
	if c.version != o.version {
		c.attempts = 0
	}
	c.attempts++
	wait := backoff(c.attempts, retryMin, retryMax)
	tooLarge := isTooLarge(o.err)
	if tooLarge {
		// No repetition makes it smaller. The next Put of this key is tried again.
		c.denied = c.version == o.version
		delete(w.unwritten, o.key)
	}
	w.mu.Unlock()
	w.failed(o.key, o.err)
	return wait, !tooLarge
}

// exceedsMaximum is JetStream's code for a message that is larger than its stream takes (10054,
// JSStreamMessageExceedsMaximumErr).
const exceedsMaximum jetstream.ErrorCode = 10054

// isTooLarge reports whether an entry failed because of its size: beyond what the bus takes of any, or of this bucket.
func isTooLarge(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &api) && api.ErrorCode == exceedsMaximum
}

func (w *Writer) failed(key string, err error) {
	w.c.metrics.putErrors.WithLabelValues(w.bucket).Inc()
	w.c.log.Warn("the bus did not take an entry", "bucket", w.bucket, "key", key, logkey.Err, err)
}

// again queues keys that are due.
func (w *Writer) again(keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		if c := w.keys[key]; c != nil {
			w.enqueue(key, c)
		}
	}
}

// mayMark reports whether all that was there when the epoch began, or when Complete was called, is written.
func (w *Writer) mayMark() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.complete && w.marked != w.epoch && len(w.unwritten) == 0
}

func (w *Writer) markWritten() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marked = w.epoch
}

func (w *Writer) gauge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.c.metrics.pending.WithLabelValues(w.bucket).Set(float64(len(w.queue)))
}
