package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/microlet/microlet/proto/subject"
)

const (
	// outboxAckWait is after which time a record whose deliverer died is given out again. A living one
	// says more often that it is still at it.
	outboxAckWait = 10 * time.Second
	// dedupeWindow is how long a record's id is remembered: longer than a publisher repeats within.
	dedupeWindow = 2 * time.Minute
)

// ensureStreams makes or updates every stream of the contract, and the outbox's consumer.
func ensureStreams(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	for _, b := range subject.Buckets() {
		if _, err := js.CreateOrUpdateStream(ctx, bucketStream(b)); err != nil {
			return fmt.Errorf("bucket %s: %w; if its settings cannot be changed in place, stop the bus and remove its store", b.Name, err)
		}
	}
	if _, err := js.CreateOrUpdateStream(ctx, outboxStream()); err != nil {
		return fmt.Errorf("stream %s: %w; if its settings cannot be changed in place, stop the bus and remove its store", subject.OutboxStream, err)
	}
	if _, err := js.CreateOrUpdateConsumer(ctx, subject.OutboxStream, outboxConsumer()); err != nil {
		return fmt.Errorf("consumer %s of %s: %w", subject.OutboxConsumer, subject.OutboxStream, err)
	}
	return nil
}

// bucketStream is a key-value bucket as ADR-8 of NATS has it, with history 1, but that nobody may
// purge: neither by the API nor by a message that rolls up.
func bucketStream(b subject.Bucket) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subject.Stream(b.Name), Subjects: []string{subject.Entries(b.Name)},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		MaxMsgsPerSubject: 1, MaxBytes: b.MaxBytes, MaxMsgSize: subject.MaxPayload, MaxAge: b.TTL, MaxMsgs: -1,
		Replicas: 1, MaxConsumers: -1, Duplicates: min(dedupeWindow, positive(b.TTL, dedupeWindow)),
		DenyDelete: true, DenyPurge: true, AllowRollup: false,
		AllowDirect: true, // lists of it need no consumer
		AllowMsgTTL: true, // deletes go after a while
	}
}

func positive(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

func outboxStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subject.OutboxStream, Subjects: []string{subject.OutboxSubjects},
		Storage: jetstream.FileStorage, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardOld,
		MaxMsgsPerSubject: subject.OutboxMaxMessages, MaxMsgs: -1, MaxBytes: subject.OutboxMaxBytes, MaxMsgSize: subject.OutboxMaxEntry,
		Replicas: 1, MaxConsumers: 1, Duplicates: dedupeWindow, DenyDelete: true, DenyPurge: true,
	}
}

// outboxConsumer gives out several records at a time: one that the apiserver does not take must not hold up the others.
// One that is given out again, since its deliverer died, comes after its successors.
func outboxConsumer() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: subject.OutboxConsumer, DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: outboxAckWait, MaxAckPending: subject.OutboxMaxPending, MaxDeliver: -1,
		MaxWaiting: 16, Replicas: 1,
	}
}
