package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

const (
	// A page stays far below the server's bound on what may wait for a client (64 MiB), beyond
	// which it cuts the connection.
	pageMessages = 512
	pageBytes    = 4 << 20
	// answerTimeout is how long a bus that lives may take for the next message of a page.
	answerTimeout = 5 * time.Second
)

// entry is one value or delete of a key, as it came.
type entry struct {
	key     string
	writer  string
	epoch   int64
	rev     uint64
	deleted bool
	value   []byte
	// traceparent is of the span in which the entry was put; empty for none.
	traceparent string
}

// headers of JetStream's key-value store (ADR-8) and of its direct gets (ADR-31).
const (
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
	headerTTL       = "Nats-TTL"
	headerSubject   = "Nats-Subject"
	headerSequence  = "Nats-Sequence"
	headerPending   = "Nats-Num-Pending"
	headerStream    = "Nats-Stream"
	headerStatus    = "Status"
	headerReason    = "Description"
)

// control returns the status of an answer that is the server's own word. What a message was stored with comes back
// with it, also a header of that name; but the server adds to a stored message the stream that it is from.
func control(m *nats.Msg) string {
	if m.Header.Get(headerStream) != "" {
		return ""
	}
	return m.Header.Get(headerStatus)
}

// added returns a header that the server has added to a stored message. It comes after those of the message.
func added(m *nats.Msg, name string) string {
	values := m.Header.Values(name)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// parseEntry reads a key's message; subj is its subject.
func parseEntry(subj string, m *nats.Msg) (entry, error) {
	_, key, ok := subject.ParseEntry(subj)
	if !ok {
		return entry{}, fmt.Errorf("subject %q is no key's", subj)
	}
	var env busv1.Entry
	if err := proto.Unmarshal(m.Data, &env); err != nil {
		return entry{key: key}, fmt.Errorf("entry %s: %w", subj, err)
	}
	return entry{
		key: key, writer: env.Writer, epoch: env.Epoch, rev: env.Revision, value: env.Value,
		deleted: m.Header.Get(headerOperation) == operationDelete, traceparent: env.Traceparent,
	}, nil
}

// listing reads the entries of a bucket owner by owner and page by page, through direct gets, which need no consumer.
type listing struct {
	nc     *nats.Conn
	bucket string
	inbox  string
	parts  []part
	at     int // the part that is being read
	// failures counts the parts that could not be read, and failed says why the last of them could not.
	failures int
	failed   error
	page     int // counts requests, so that a late answer to an older one is not taken
	got      int // messages of this page
}

// part is what one owner has in the bucket.
type part struct {
	owner   role.Role
	request string
	next    uint64 // the first sequence that was not seen
}

// newListing lists, as r, what the owners have in a bucket.
func newListing(nc *nats.Conn, r role.Role, bucket string, owners []role.Role, inbox string) *listing {
	l := &listing{nc: nc, bucket: bucket, inbox: inbox}
	for _, owner := range owners {
		l.parts = append(l.parts, part{owner: owner, request: subject.ListAs(r, bucket, owner)})
	}
	return l
}

// answers subscribes to what the bus answers to listings on this inbox.
func answers(nc *nats.Conn) (inbox string, ch chan *nats.Msg, sub *nats.Subscription, err error) {
	inbox = nc.NewInbox()
	ch = make(chan *nats.Msg, 2*pageMessages+16)
	sub, err = nc.ChanSubscribe(inbox+".*", ch)
	if err != nil {
		return "", nil, nil, fmt.Errorf("subscribe to answers: %w", err)
	}
	return inbox, ch, sub, nil
}

// begin asks each owner, from the first on, for what was not seen yet.
func (l *listing) begin() error {
	l.at, l.failures, l.failed = 0, 0, nil
	return l.request()
}

// owner is the owner of the entries that are being read.
func (l *listing) owner() role.Role { return l.parts[l.at].owner }

// request asks for the next page.
func (l *listing) request() error {
	p := &l.parts[l.at]
	body, err := json.Marshal(map[string]any{
		"seq": max(p.next, 1), "next_by_subj": subject.Entries(l.bucket), "batch": pageMessages, "max_bytes": pageBytes,
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", l.bucket, err)
	}
	l.page++
	l.got = 0
	if err := l.nc.PublishRequest(p.request, l.inbox+"."+strconv.Itoa(l.page), body); err != nil {
		return fmt.Errorf("list %s of %s: %w", l.bucket, p.owner, err)
	}
	return nil
}

// take reads one answer. It returns the subject of the entry in m, if it is one, and whether the
// listing is complete; it asks for the next page by itself.
func (l *listing) take(m *nats.Msg) (subj string, done bool, err error) {
	if m.Subject != l.inbox+"."+strconv.Itoa(l.page) {
		return "", false, nil
	}
	switch status := control(m); status {
	case "":
		seq, err := strconv.ParseUint(added(m, headerSequence), 10, 64)
		if err != nil || seq < l.parts[l.at].next {
			return "", false, fmt.Errorf("list %s of %s: the answer has sequence %q after %d", l.bucket, l.owner(),
				added(m, headerSequence), l.parts[l.at].next)
		}
		l.parts[l.at].next = seq + 1
		l.got++
		return added(m, headerSubject), false, nil
	case "204":
		if pending := m.Header.Get(headerPending); pending != "" && pending != "0" && l.got > 0 {
			return "", false, l.request()
		}
		return l.finishPart()
	case "404":
		return l.finishPart()
	default:
		// An owner that has harmed its own part harms no other part. It is asked again with the next listing.
		l.failed = fmt.Errorf("list %s of %s: the bus answers %s %s", l.bucket, l.owner(), status,
			m.Header.Get(headerReason))
		l.failures++
		return l.finishPart()
	}
}

// finishPart goes on to the next owner. A listing of which every part has failed has failed.
func (l *listing) finishPart() (subj string, done bool, err error) {
	if l.at+1 == len(l.parts) {
		if l.failures == len(l.parts) {
			return "", false, l.failed
		}
		return "", true, nil
	}
	l.at++
	return "", false, l.request()
}

// list calls f for every entry that r itself has in a bucket, epoch marks too.
func list(ctx context.Context, nc *nats.Conn, r role.Role, bucket string, f func(entry)) error {
	inbox, ch, sub, err := answers(nc)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	l := newListing(nc, r, bucket, []role.Role{r}, inbox)
	if err := l.begin(); err != nil {
		return err
	}
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("list %s: no answer in %v", bucket, answerTimeout)
		case m := <-ch:
			timer.Reset(answerTimeout)
			subj, done, err := l.take(m)
			if err != nil || done {
				return err
			}
			if subj == "" {
				continue
			}
			if e, err := parseEntry(subj, m); err == nil {
				f(e)
			}
		}
	}
}

// lastEpoch returns the epoch of a mark of r in the bucket, 0 when there is none.
func lastEpoch(ctx context.Context, nc *nats.Conn, r role.Role, bucket, key string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject.DirectGetKey(bucket, r, key), nil)
	if err != nil {
		return 0, fmt.Errorf("read the mark %s/%s: %w", bucket, key, err)
	}
	switch status := control(m); status {
	case "":
	case "404":
		return 0, nil
	default:
		return 0, fmt.Errorf("read the mark %s/%s: the bus answers %s %s", bucket, key, status,
			m.Header.Get(headerReason))
	}
	e, err := parseEntry(added(m, headerSubject), m)
	if err != nil {
		// Not this program's; the mark that follows replaces it.
		return 0, nil
	}
	return e.epoch, nil
}

var errSessionLost = errors.New("the connection to the bus was lost")
