package delivery

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/tracing"
	"github.com/microlet/microlet/services/internal/tracing/spantest"
)

// outboxOf stores what a recorder records.
type outboxOf struct{ *stream }

func (o outboxOf) Store(_ context.Context, _, _ string, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, &stored{data: data})
	return nil
}

// TestAnEventIsDeliveredInTheTraceOfItsPod, and others in none.
func TestAnEventIsDeliveredInTheTraceOfItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		podsync, nodestatus := spantest.New(t), spantest.New(t)
		ctx, round := podsync.Begin(t.Context(), "syncPod")
		box := &stream{}
		r := outbox.RecorderTo(outboxOf{box}, role.Podsync, "podsync.0", "n", slog.New(slog.DiscardHandler))
		r.InTraces(func(uid types.UID) string {
			if uid == "u" {
				return tracing.ParentOf(ctx).String()
			}
			return ""
		})
		round.End(nil)
		running, stop := context.WithCancel(t.Context())
		go func() { _ = r.Run(running) }()
		for _, uid := range []types.UID{"u", "v"} {
			of := &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p" + string(uid), UID: uid}
			r.Event(of, corev1.EventTypeNormal, "Started", "Container started")
		}
		server := newAPIServer(nil)
		end := deliver(t, box, server, func(o *Options) { o.Tracer = nodestatus.Tracer })
		wait(10 * time.Second)
		stop()
		end()
		if got := server.created(); len(got) != 2 {
			t.Fatalf("delivered %v", got)
		}
		spans := nodestatus.Spans(t)
		sync := podsync.Spans(t)[0]
		if len(spans) != 1 || spans[0].Name != "deliverEvent" || spans[0].Parent != sync.ID || spans[0].Trace != sync.Trace ||
			spans[0].Attributes["microlet.event.reason"] != "Started" {
			t.Errorf("recorded %+v in %+v", spans, sync)
		}
	})
}
