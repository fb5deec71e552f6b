// Package eventlog writes Events to the log, on a node without an API server.
package eventlog

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/outbox/delivery"
)

// Sink takes Events from the outbox.
type Sink struct{ Log *slog.Logger }

var _ delivery.Sink = Sink{}

// Create implements delivery.Sink.
func (s Sink) Create(ctx context.Context, e *v1.Event) (*v1.Event, error) {
	level := slog.LevelInfo
	if e.Type == v1.EventTypeWarning {
		level = slog.LevelWarn
	}
	s.Log.Log(ctx, level, "event", logkey.Kind, e.InvolvedObject.Kind, "object",
		e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name,
		"objectUID", e.InvolvedObject.UID, logkey.Field, e.InvolvedObject.FieldPath, logkey.Reason, e.Reason,
		logkey.Message, e.Message,
		"count", e.Count)
	return e, nil
}

// Patch implements delivery.Sink: one that came before comes again, with its count.
func (s Sink) Patch(ctx context.Context, e *v1.Event, _ []byte) (*v1.Event, error) {
	return s.Create(ctx, e)
}
