package collector

import (
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/tracing/spantest"
)

func TestACollectionIsATrace(t *testing.T) {
	spans := spantest.New(t)
	w := newWorld()
	c, _ := w.collector(func(o *Options) { o.Tracer = spans.Tracer })
	if err := c.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.capacity = 0
	if c.Collect(t.Context()) == nil {
		t.Fatal("a collection on a disk without capacity has no error")
	}
	got := spantest.Named(spans.Spans(t), "Images/GarbageCollect")
	if len(got) != 2 || got[0].Failed != "" || !strings.Contains(got[1].Failed, "invalid capacity") ||
		got[0].Trace == got[1].Trace {
		t.Errorf("two collections have left %+v", got)
	}
}
