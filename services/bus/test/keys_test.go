package test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// The bus lets an owner publish any key that its wildcards match. Readers take those that the contract can build.
func TestReadersRefuseKeysThatNoServiceBuilds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var results view
	reader := n.peer(role.Podsync, "0", "",
		func(c *bus.Client) { results = bus.Watch[value](c, subject.ProbeResults, ">", nil) })
	proctest.Await(t, bound, "the reader is in sync", results.Synced)
	prober, denied := n.raw(role.Prober)
	for _, key := range []string{
		strings.Repeat("x", 3500) + ".c.liveness", "p.c/d.liveness", "p._epoch.liveness", "p.é.liveness",
	} {
		for _, operation := range []string{"PUT", "DEL"} {
			m := nats.NewMsg(subject.Entry(subject.ProbeResults, key))
			m.Header.Set("KV-Operation", operation)
			m.Data = signedAs(t, "prober.0", "x")
			if err := prober.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	const last = "p.c.liveness"
	if err := prober.Publish(subject.Entry(subject.ProbeResults, last), signedAs(t, "prober.0", "x")); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, bound, "what comes last is heard", func() bool { _, ok := results.Get(last); return ok })
	if all := results.All(); len(all) != 1 || denied() != "" {
		t.Errorf("the reader holds %d keys; the bus denies: %q", len(all), denied())
	}
	if got := reader.metric("microlet_bus_entries_rejected_total", "bucket", subject.ProbeResults); got < 8 {
		t.Errorf("the reader has rejected %v entries of 8", got)
	}
}
