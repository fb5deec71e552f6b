package bus

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// testClient returns a client of a bus that is not there.
func testClient(t *testing.T) *Client {
	t.Helper()
	dir := t.TempDir()
	if err := GenerateNKeys(dir, []role.Identity{{Role: role.Prober, UID: os.Getuid(), GID: os.Getgid()}}); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{
		Socket:   dir + "/nats.sock",
		SeedFile: SeedFile(dir, role.Prober),
		Role:     role.Prober,
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOnlyWhatIsTracedSaysSo: without a trace a message has no header and no byte more than it had without traces.
func TestOnlyWhatIsTracedSaysSo(t *testing.T) {
	w := testClient(t).Own(subject.ProbeResults)
	const in = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, test := range map[string]struct {
		put  func(key string)
		want string
	}{
		"put":     {func(key string) { w.Put(key, wrapperspb.String("x")) }, ""},
		"refresh": {func(key string) { w.Refresh(key, wrapperspb.String("x")) }, ""},
		"none":    {func(key string) { w.PutTraced(key, wrapperspb.String("x"), "") }, ""},
		"traced":  {func(key string) { w.PutTraced(key, wrapperspb.String("x"), in) }, in},
	} {
		key := subject.ProbeResultKey(name, "c", "liveness")
		test.put(key)
		_, msg, _ := w.next(t.Context())
		if msg == nil {
			t.Fatalf("%s: it is not sent", name)
		}
		var got busv1.Entry
		if err := proto.Unmarshal(msg.Data, &got); err != nil {
			t.Fatal(err)
		}
		if got.Traceparent != test.want || len(msg.Header) != 0 {
			t.Errorf("%s: it says %q, with the headers %v", name, got.Traceparent, msg.Header)
		}
		got.Traceparent = ""
		if least := proto.Size(&got); test.want == "" && len(msg.Data) != least {
			t.Errorf("%s: it has %d bytes, want %d", name, len(msg.Data), least)
		}
	}
}

// A key that is given up and taken again while a put of it is under way is another's as long as that put lasts: its
// outcome says nothing of the later one.
func TestReleasedAndPutAgainWhileUnderWay(t *testing.T) {
	c := testClient(t)
	for name, failure := range map[string]error{"acknowledged": nil, "failed": errors.New("no answer")} {
		t.Run(name, func(t *testing.T) {
			w := c.Own(subject.ProbeResults)
			key := subject.ProbeResultKey(name, "c", "liveness")
			w.Put(key, wrapperspb.String("old"))
			old, msg, _ := w.next(t.Context())
			if msg == nil {
				t.Fatal("the put is not sent")
			}
			w.Release(key)
			w.Put(key, wrapperspb.String("new"))
			old.err = failure
			if _, again := w.settle(old); again {
				t.Error("what was given up is sent again")
			}
			if w.Pending() != 1 {
				t.Errorf("%d keys are pending, want the one that was put again", w.Pending())
			}
			later, msg, _ := w.next(t.Context())
			if msg == nil || later.key != key {
				t.Fatalf("the later put is not sent: %v", later)
			}
			w.settle(later)
			if w.Pending() != 0 {
				t.Error("the later put is pending after its acknowledgement")
			}
		})
	}
}
