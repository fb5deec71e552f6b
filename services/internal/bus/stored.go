package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/microlet/microlet/proto/subject"
)

const (
	// takeWait is how long the bus holds a request for a record that is not there yet.
	takeWait = 5 * time.Second
	// ackRecordTimeout is how long the bus may take to confirm an acknowledgement.
	ackRecordTimeout = 5 * time.Second
)

// ErrNoRecord is returned by Take when none came.
var ErrNoRecord = errors.New("no record")

// Store publishes a message to a stream and returns nil once the bus has acknowledged it. The id names
// the message: repeated within half a minute it is stored once. It returns ErrNotConnected while the bus is away.
func (c *Client) Store(ctx context.Context, subj, id string, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("store %s: %w", subj, err)
	}
	ctx, cancel, s := c.within(ctx, ackTimeout)
	if s == nil {
		return fmt.Errorf("store %s: %w", subj, ErrNotConnected)
	}
	defer cancel()
	if _, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: subj, Data: data}, jetstream.WithMsgID(id),
		jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("store %s: %w", subj, err)
	}
	return nil
}

// Record is one record of the outbox, given out to this client until it is acknowledged.
type Record struct {
	// Data is the marshalled microlet.bus.v1.KubernetesEvent.
	Data []byte
	c    *Client
	ack  string
}

// Take waits some seconds for the next record of the outbox. It returns ErrNoRecord when none came and
// ErrNotConnected while the bus is away. No more than subject.OutboxMaxPending records are given out at a
// time; one that is neither acknowledged nor kept is given out again after 10 s.
func (c *Client) Take(ctx context.Context) (*Record, error) {
	body, err := json.Marshal(map[string]any{"batch": 1, "expires": takeWait})
	if err != nil {
		return nil, fmt.Errorf("take a record: %w", err)
	}
	ctx, cancel, s := c.within(ctx, takeWait+time.Second)
	if s == nil {
		return nil, ErrNotConnected
	}
	defer cancel()
	m, err := s.next(ctx, body)
	if err != nil {
		return nil, fmt.Errorf("take a record: %w", err)
	}
	switch status := m.Header.Get(headerStatus); status {
	case "":
		return &Record{Data: m.Data, c: c, ack: m.Reply}, nil
	case "404", "408":
		return nil, ErrNoRecord
	default:
		return nil, fmt.Errorf("take a record: the bus answers %s %s", status, m.Header.Get(headerReason))
	}
}

// next asks for the next record on an inbox of its own. A record comes under the subject that it was stored with, by
// which the answers to requests, which share an inbox, cannot be distinguished: with two under way it would be dropped,
// and given out again after 10 s.
func (s *session) next(ctx context.Context, body []byte) (*nats.Msg, error) {
	inbox := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails when the connection is gone, and the subscription with it
	if err := s.nc.PublishRequest(subject.OutboxNext, inbox, body); err != nil {
		return nil, err
	}
	return sub.NextMsgWithContext(ctx)
}

// Done acknowledges the record, and returns nil once the bus has confirmed that it is gone.
func (r *Record) Done(ctx context.Context) error {
	ctx, cancel, s := r.c.within(ctx, ackRecordTimeout)
	if s == nil {
		return ErrNotConnected
	}
	defer cancel()
	if _, err := s.nc.RequestWithContext(ctx, r.ack, []byte("+ACK")); err != nil {
		return fmt.Errorf("acknowledge a record: %w", err)
	}
	return nil
}

// Keep reports to the bus that the record is still being processed. Call it every few seconds.
func (r *Record) Keep() error {
	s := r.c.current()
	if s == nil {
		return ErrNotConnected
	}
	if err := s.nc.Publish(r.ack, []byte("+WPI")); err != nil {
		return fmt.Errorf("keep a record: %w", err)
	}
	return nil
}

// WaitConnected returns when there is a connection, or with ctx's error.
func (c *Client) WaitConnected(ctx context.Context) error {
	if c.wait(ctx, 0) == nil {
		return ctx.Err()
	}
	return nil
}

// within bounds ctx by d and by the session of now, which is nil when there is none.
func (c *Client) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc, *session) {
	s := c.current()
	if s == nil {
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d, context.DeadlineExceeded)
	stop := make(chan struct{})
	go func() {
		select {
		case <-s.gone:
			cancel()
		case <-stop:
		case <-ctx.Done():
		}
	}()
	return ctx, func() { close(stop); cancel() }, s
}
