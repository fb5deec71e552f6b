package leftovers

import (
	"errors"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/tracing/spantest"
)

func TestARoundIsATrace(t *testing.T) {
	spans := spantest.New(t)
	var m machine
	c := m.cleanup(t)
	c.Tracer = spans.Tracer
	if err := c.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.lists = errors.New("runtime is down")
	if c.round(t.Context()) == nil {
		t.Fatal("a round without a list has no error")
	}
	got := spantest.Named(spans.Spans(t), "Containers/GarbageCollect")
	if len(got) != 2 || got[0].Failed != "" || !strings.Contains(got[1].Failed, "is down") ||
		got[0].Trace == got[1].Trace {
		t.Errorf("two rounds have left %+v", got)
	}
}
