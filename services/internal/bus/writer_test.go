package bus

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// A key that is given up and taken again while a put of it is under way is another's as long as that put lasts: its
// outcome says nothing of the later one.
func TestReleasedAndPutAgainWhileUnderWay(t *testing.T) {
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
