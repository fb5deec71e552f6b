package server

import (
	"net/http"
	"testing"

	"github.com/microlet/microlet/services/internal/tracing/spantest"
	"github.com/microlet/microlet/services/nodeapi/internal/auth"
)

func TestWhatIsServedIsTraced(t *testing.T) {
	spans := spantest.New(t)
	n := newNode(t, func(o *Options) { o.Tracer = spans.Tracer })
	n.add(t, pod("p", "c"))
	refused := decision{refusal: &auth.Refusal{Code: http.StatusForbidden, Text: "no"}}
	serve(t, n.Handler(refused), http.MethodGet, "/pods")
	if got := spans.Spans(t); len(got) > 0 {
		t.Errorf("who was refused has left %+v", got)
	}
	serve(t, n.Handler(decision{}), http.MethodPost, "/exec/ns/p/c?output=1&command=x")
	got := spans.Spans(t)
	request := spantest.Named(got, "/exec/{namespace}/{pod}/{container}")
	if len(request) != 1 || request[0].Attributes["url.path"] != "/exec/ns/p/c" {
		t.Fatalf("the request has left %+v", got)
	}
	serve(t, n.Healthz(), http.MethodGet, "/healthz")
	if now := spans.Spans(t); len(now) != len(got) {
		t.Errorf("the health port has left %+v", now[len(got):])
	}
	serve(t, n.ReadOnly(), http.MethodGet, "/pods")
	if got := spantest.Named(spans.Spans(t), "/pods"); len(got) != 1 {
		t.Errorf("a request of the read-only port has left %+v", got)
	}
}
