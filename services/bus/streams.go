package bus

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

const (
	// outboxAckWait is the time after which a record is delivered again if its deliverer has died. A living one says more
	// often that it is still at it.
	outboxAckWait = 10 * time.Second
	// dedupeWindow is how long a record's id is remembered: longer than a publisher waits for its acknowledgement and
	// repeats it. The server keeps ids in memory.
	dedupeWindow = 30 * time.Second
	// noDedupe is the shortest that the server knows. Entries have no ids.
	noDedupe = 100 * time.Millisecond
)

// ensureStreams makes or updates every stream of a role's account, and the outbox's consumer.
func ensureStreams(ctx context.Context, nc *nats.Conn, r role.Role) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	for _, b := range subject.Buckets() {
		if !slices.Contains(b.Owners(), r) {
			continue
		}
		if _, err := js.CreateOrUpdateStream(ctx, bucketStream(b, r)); err != nil {
			return fmt.Errorf("bucket %s of %s: %w; if its settings cannot be changed in place, stop the bus and "+
				"remove its store", b.Name, r, err)
		}
	}
	if r != subject.OutboxReader {
		return nil
	}
	if _, err := js.CreateOrUpdateStream(ctx, outboxStream()); err != nil {
		return fmt.Errorf("stream %s: %w; if its settings cannot be changed in place, stop the bus and remove its store",
			subject.OutboxStream, err)
	}
	if _, err := js.CreateOrUpdateConsumer(ctx, subject.OutboxStream, outboxConsumer()); err != nil {
		return fmt.Errorf("consumer %s of %s: %w", subject.OutboxConsumer, subject.OutboxStream, err)
	}
	return nil
}

// bucketStream is an owner's part of a key-value bucket as ADR-8 of NATS has it, with history 1. One rule differs: no
// client may purge it, neither by the API nor by a message that rolls up.
func bucketStream(b subject.Bucket, owner role.Role) jetstream.StreamConfig {
	var subjects []string
	for _, key := range b.KeysOf(owner) {
		subjects = append(subjects, subject.Entry(b.Name, key))
	}
	return jetstream.StreamConfig{
		Name: subject.Stream(b.Name, owner), Subjects: subjects,
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		MaxMsgsPerSubject: 1, MaxBytes: b.MaxBytes, MaxMsgSize: b.MaxEntry, MaxAge: b.TTL, MaxMsgs: -1,
		Replicas: 1, MaxConsumers: -1, Duplicates: noDedupe,
		DenyDelete: true, DenyPurge: true, AllowRollup: false,
		AllowDirect: true, // lists of it need no consumer
		AllowMsgTTL: true, // deletes go after a while
	}
}

func outboxStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              subject.OutboxStream,
		Subjects:          []string{subject.OutboxSubjects},
		Storage:           jetstream.FileStorage,
		Retention:         jetstream.WorkQueuePolicy,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: subject.OutboxMaxMessages,
		MaxMsgs:           -1,
		MaxBytes:          subject.OutboxMaxBytes,
		MaxMsgSize:        subject.OutboxMaxEntry,
		Replicas:          1,
		MaxConsumers:      1,
		Duplicates:        dedupeWindow,
		DenyDelete:        true,
		DenyPurge:         true,
	}
}

// outboxConsumer gives out several records at a time: one that the apiserver does not take must not hold up the others.
// One that is given out again, since its deliverer died, comes after its successors.
func outboxConsumer() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       subject.OutboxConsumer,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       outboxAckWait,
		MaxAckPending: subject.OutboxMaxPending,
		MaxDeliver:    -1,
		MaxWaiting:    16,
		Replicas:      1,
	}
}
