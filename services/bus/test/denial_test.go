package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// What permissions deny is an error in the log and counted, and has no effect.
func TestADeniedPublishIsLoud(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var node view
	n.peer(role.NodeStatus, "0", "", func(c *bus.Client) { node = bus.Watch[value](c, subject.Node, ">", nil) })
	podsync, pleg := n.peer(role.Podsync, "0", "", nil), n.peer(role.PLEG, "0", "", nil)

	// The owner may: no denial, and it is heard.
	podsync.Own(subject.Node).Put(subject.NodeCapacity, wrapperspb.String("true"))
	proctest.Await(t, bound, "the owner's put is heard",
		func() bool { _, ok := node.Get(subject.NodeCapacity); return ok })
	if got := podsync.metric("microlet_bus_denied_total"); got != 0 {
		t.Errorf("the owner was denied %v times", got)
	}

	proctest.Await(t, bound, "pleg is connected", pleg.Connected)
	pleg.Own(subject.Node).Put(subject.NodeCapacity, wrapperspb.String("false"))
	took := proctest.Await(t, bound, "the denied put is counted", func() bool {
		return pleg.metric("microlet_bus_denied_total", "operation", "publish") >= 1
	})
	t.Logf("reported the denial after %v", took)
	proctest.Await(t, bound, "the denial is an error in the log", func() bool {
		log := pleg.log.String()
		return strings.Contains(log, "level=ERROR") && strings.Contains(log, "NODE")
	})
	if m, _ := node.Get(subject.NodeCapacity); m.GetValue() != "true" {
		t.Errorf("the denied put took effect: %q", m.GetValue())
	}
	before := podsync.metric("microlet_bus_denied_total", "operation", "publish")
	if err := podsync.Publish(subject.LifecycleEvent("a-pod"), wrapperspb.String("")); err != nil {
		t.Fatal(err)
	}
	proctest.Await(t, bound, "the denied hint is counted", func() bool {
		return podsync.metric("microlet_bus_denied_total", "operation", "publish") > before
	})
	podsync.Subscribe("microlet.evt.>", func(string, []byte) {})
	proctest.Await(t, bound, "the denied subscription is counted", func() bool {
		return podsync.metric("microlet_bus_denied_total", "operation", "subscribe") == 1
	})
}

// socketDialer connects to a unix socket without asking who serves it.
type socketDialer string

func (d socketDialer) Dial(_, _ string) (net.Conn, error) { return net.Dial("unix", string(d)) }

// raw is a connection of a role without this project's client.
func (n *node) raw(r role.Role) (*nats.Conn, func() string) {
	n.t.Helper()
	return n.rawThrough(r, socketDialer(n.socket()))
}

// rawThrough is raw with a way to the bus of the test's own.
func (n *node) rawThrough(r role.Role, dialer nats.CustomDialer) (*nats.Conn, func() string) {
	n.t.Helper()
	opt, err := nats.NkeyOptionFromSeed(bus.SeedFile(n.nkeys(), r))
	if err != nil {
		n.t.Fatal(err)
	}
	var mu sync.Mutex
	var last string
	nc, err := nats.Connect("nats://bus", opt, nats.SetCustomDialer(dialer), nats.CustomInboxPrefix(subject.Inbox(r)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			mu.Lock()
			defer mu.Unlock()
			last = err.Error()
		}))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(nc.Close)
	return nc, func() string { mu.Lock(); defer mu.Unlock(); return last }
}

// No service can purge, delete or alter a stream or make a consumer, not even of its own bucket.
func TestNoServiceAltersAStream(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	podsync := n.peer(role.Podsync, "0", "", nil)
	w := podsync.Own(subject.Pods)
	w.Put("kept", wrapperspb.String("kept"))
	w.Put("kept-too", wrapperspb.String("kept"))
	proctest.Await(t, bound, "written", func() bool { return w.Pending() == 0 })

	for _, r := range role.All() {
		nc, last := n.raw(r)
		for _, subj := range []string{
			"$JS.API.STREAM.PURGE.KV_PODS_podsync", "$JS.API.STREAM.DELETE.KV_PODS_podsync",
			"$JS.API.STREAM.UPDATE.KV_PODS_podsync",
			"$JS.API.STREAM.MSG.DELETE.KV_PODS_podsync", "$JS.API.STREAM.CREATE.MINE",
			"$JS.API.CONSUMER.CREATE.KV_PODS_podsync.mine.$KV.PODS.>",
			"$JS.API.CONSUMER.DELETE.OUTBOX.deliver", "$JS.API.CONSUMER.DURABLE.CREATE.OUTBOX.mine",
			"$SYS.REQ.SERVER.PING",
		} {
			if err := nc.Publish(subj, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
			if err := nc.FlushTimeout(bound); err != nil {
				t.Fatal(err)
			}
			proctest.Await(t, bound, fmt.Sprintf("%s is denied %s", r, subj),
				func() bool { return strings.Contains(last(), subj) })
		}
	}
	nc, _ := n.raw(role.Podsync)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	put := func(header nats.Header) error {
		_, err := js.PublishMsg(ctx,
			&nats.Msg{Subject: subject.Entry(subject.Pods, "kept"), Header: header, Data: []byte{}})
		return err
	}
	for _, rollup := range []string{"all", "sub"} {
		if put(nats.Header{"Nats-Rollup": {rollup}}) == nil {
			t.Errorf("the owner could purge its bucket by a message that rolls up %q", rollup)
		}
	}
	if err := put(nil); err != nil {
		t.Errorf("the owner cannot put: %v", err)
	}
	body, _ := json.Marshal(map[string]any{"last_by_subj": subject.Entry(subject.Pods, "kept-too")})
	if m, err := nc.RequestWithContext(ctx, subject.DirectGet(subject.Pods, role.Podsync), body); err != nil ||
		m.Header.Get("Status") != "" {
		t.Errorf("the value is gone: %v %v", m, err)
	}
}

func TestNoClientConnectsWithoutAKey(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if nc, err := nats.Connect("nats://bus", nats.SetCustomDialer(socketDialer(n.socket()))); err == nil {
		nc.Close()
		t.Error("a connection without a key was taken")
	}
	n.raw(role.Up) // a key is taken
}

// droppingProxy is a proxy before the bus that can drop the bus's messages about buckets, and nothing else.
type droppingProxy struct {
	net.Listener
	to       string
	dropping atomic.Bool
	wg       sync.WaitGroup
}

func newDroppingProxy(t *testing.T, to string) *droppingProxy {
	l, err := net.Listen("unix", to+".proxy")
	if err != nil {
		t.Fatal(err)
	}
	d := &droppingProxy{Listener: l, to: to}
	d.wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("unix", to)
			if err != nil {
				down.Close()
				continue
			}
			d.wg.Go(func() { defer up.Close(); _, _ = io.Copy(up, down) })
			d.wg.Go(func() { defer down.Close(); d.filter(down, bufio.NewReader(up)) })
		}
	})
	return d
}

func (d *droppingProxy) filter(down io.Writer, up *bufio.Reader) {
	for {
		line, err := up.ReadBytes('\n')
		if err != nil {
			return
		}
		out := bytes.Clone(line)
		fields := strings.Fields(string(line))
		if len(fields) > 3 && (fields[0] == "MSG" || fields[0] == "HMSG") {
			size, _ := strconv.Atoi(fields[len(fields)-1])
			body := make([]byte, size+2)
			if _, err := io.ReadFull(up, body); err != nil {
				return
			}
			if d.dropping.Load() && strings.HasPrefix(fields[1], "$KV.") {
				continue
			}
			out = append(out, body...)
		}
		if _, err := down.Write(out); err != nil {
			return
		}
	}
}

// A watch that hears nothing while its bucket changes is found, and what it missed is known.
func TestADeafWatchIsFound(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	proxy := newDroppingProxy(t, n.socket())
	defer proxy.Close()
	var v view
	reader := n.peer(role.Prober, "0", proxy.Addr().String(),
		func(c *bus.Client) { v = bus.Watch[value](c, subject.Pods, ">", nil) })
	podsync := n.peer(role.Podsync, "0", "", nil)
	podsync.Own(subject.Pods).Put("a", wrapperspb.String("1"))
	proctest.Await(t, bound, "heard", func() bool { _, ok := v.Get("a"); return ok })
	// Past the time in which the list is continued, so that only the audit can find it. Audits that find nothing
	// are not reported, so there is nothing else to wait for.
	time.Sleep(2 * time.Second)
	if got := reader.metric("microlet_bus_watch_restarts_total", "reason", "stalled"); got != 0 {
		t.Fatalf("a working watch was taken for stalled %v times", got)
	}
	proxy.dropping.Store(true)
	podsync.Own(subject.Pods).Put("a", wrapperspb.String("2"))
	took := proctest.Await(t, bound, "the missed value is known",
		func() bool { m, _ := v.Get("a"); return m.GetValue() == "2" })
	t.Logf("the missed value is known after %v", took)
	proctest.Await(t, bound, "the stalled watch is counted", func() bool {
		return reader.metric("microlet_bus_watch_restarts_total", "bucket", subject.Pods, "reason", "stalled") >= 1
	})
}
