package bus

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// testFollowing is a watch of testView's that has a session and begins to list. It has no connection.
func testFollowing(t *testing.T) (*View[*wrapperspb.StringValue], *following) {
	t.Helper()
	v, _ := testView(t)
	f := newFollowing(v.s.w, newListing(nil, role.Podsync, subject.ProbeResults, []role.Role{role.Prober}, "inbox"))
	t.Cleanup(f.close)
	return v, f
}

// message is an entry as its subscribers hear it.
func message(t *testing.T, e entry) *nats.Msg {
	t.Helper()
	m := nats.NewMsg(subject.Entry(subject.ProbeResults, e.key))
	if e.deleted {
		m.Header.Set(headerOperation, operationDelete)
	}
	data, err := proto.Marshal(&busv1.Entry{Writer: e.writer, Epoch: e.epoch, Revision: e.rev, Value: e.value})
	if err != nil {
		t.Fatal(err)
	}
	m.Data = data
	return m
}

// remembered are the bytes of the keys that a watch has in mind.
func remembered(f *following) (bytes int64) {
	for key := range f.heard {
		bytes += int64(len(key))
	}
	return bytes
}

// A delete takes nothing of its owner's part of the bucket, so an owner can publish as many as it likes.
func TestDeletesOfUnknownKeysAreNotPiledUp(t *testing.T) {
	_, f := testFollowing(t)
	part := f.view.contract.MaxBytes
	const a = "prober.a"
	long := strings.Repeat("x", 240)
	for i := range 50_000 {
		f.hear(message(t, del(a, 1, 1, fmt.Sprintf("%s.%s-%d.liveness", long, long, i))))
	}
	if got := remembered(f); got > part || len(f.heard) == 0 {
		t.Errorf("the watch remembers %d keys of %d bytes; the owner's part of the bucket has %d", len(f.heard), got, part)
	}
	f.endList()
	clear(f.heard)
	f.hear(message(t, del(a, 1, 1, "p.c.liveness")))
	f.hear(message(t, put(a, 1, 2, "p.c.liveness", "x")))
	if len(f.heard) != 0 {
		t.Errorf("the watch remembers %v, which no list and no audit asks for", f.heard)
	}
}

// A watch that cannot remember all that it hears shows an old value until the list goes on, and then the newest.
func TestWhatIsNotRememberedIsMended(t *testing.T) {
	v, f := testFollowing(t)
	const a, k = "prober.a", "p.c.liveness"
	f.heardSize[role.Prober] = f.view.contract.MaxBytes
	f.hear(message(t, del(a, 1, 2, k)))
	f.takeListed(put(a, 1, 1, k, "before"))
	f.endList()
	if err := f.continueList(); errors.Is(err, errDeaf) {
		t.Error(err)
	}
	f.takeListed(del(a, 1, 2, k))
	if _, ok := v.Get(k); ok {
		t.Error("a deleted key is there for good")
	}
	f.hear(message(t, del(a, 1, 4, k)))
	if !f.heard[k] {
		t.Error("the bound does not start again with the list")
	}
}

// The list is older than what is heard meanwhile, also for a key that the watch does not know yet.
func TestWhatIsHeardIsNewerThanTheList(t *testing.T) {
	v, f := testFollowing(t)
	const a, b, k = "prober.a", "prober.b", "p.c.liveness"
	f.hear(message(t, del(a, 1, 2, k)))
	f.hear(message(t, put(b, 1, 1, "q.c.liveness", "newer")))
	f.takeListed(put(a, 1, 1, k, "before"))
	f.takeListed(put(a, 7, 7, "q.c.liveness", "before"))
	f.endList()
	if m, ok := v.Get(k); ok {
		t.Errorf("a deleted key has come back with the list: %v", m)
	}
	if m, _ := v.Get("q.c.liveness"); m.GetValue() != "newer" {
		t.Errorf("the list has brought back an older value: %v", m)
	}
}

// A delete that the list brings before it is heard is no sign of a stalled watch, although the key is gone by then.
func TestADeleteThatAnAuditAwaitsIsRecognized(t *testing.T) {
	for name, come := range map[string]bool{"it comes": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			v, f := testFollowing(t)
			const a, k = "prober.a", "p.c.liveness"
			v.s.apply(put(a, 1, 1, k, "x"))
			f.continued = len(followUps) + 1
			f.takeListed(del(a, 1, 2, k))
			f.endList()
			if come {
				f.hear(message(t, del(a, 1, 2, k)))
			}
			if err := f.continueList(); errors.Is(err, errDeaf) == come {
				t.Errorf("the audit ends with %v", err)
			}
		})
	}
}

// Each entry takes memory beside its bytes. What the stream refuses is heard all the same, and what it has dropped
// meanwhile can still be in the view.
func TestManySmallEntriesAreBounded(t *testing.T) {
	v, f := testFollowing(t)
	const a = "prober.a"
	most := int(f.view.contract.MaxBytes / entryOverhead)
	for i := range most + 1000 {
		f.hear(message(t, put(a, 1, 1, fmt.Sprintf("%d.c.liveness", i), "")))
	}
	heard := len(v.All())
	if heard > most {
		t.Errorf("%d entries that were heard are held; %d would fill the owner's part with nothing else", heard, most)
	}
	for i := range 2 * most {
		f.takeListed(put(a, 1, 1, fmt.Sprintf("%d.d.liveness", i), ""))
	}
	if got := len(v.All()); got > 2*most || got == heard {
		t.Errorf("%d entries are held after the list, and %d before", got, heard)
	}
}

// Writers that an owner makes up keep out no mark of another owner, nor of its writers that are known.
func TestMarksAreBoundedByOwner(t *testing.T) {
	v, _ := testView(t)
	v.s.contract, _ = subject.BucketNamed(subject.Heartbeats)
	for i := range 10 * maxMarks {
		if e := mark(fmt.Sprintf("pleg.%d", i), 1); v.s.fits(e, 1) {
			v.s.apply(e)
		}
	}
	if got := len(v.s.marks); got != maxMarks {
		t.Errorf("%d marks of an owner are held", got)
	}
	for _, e := range []entry{mark("prober.0", 1), mark("pleg.0", 2)} {
		if !v.s.fits(e, 1) {
			t.Errorf("the mark of %s has no room", e.writer)
		}
	}
}

// TestWhatWaitsForAWatchIsBounded: a service can publish faster than its readers read.
func TestWhatWaitsForAWatchIsBounded(t *testing.T) {
	v, _ := testView(t)
	for _, b := range subject.Buckets() {
		for _, g := range b.Grants {
			for _, keys := range []string{g.Pattern, ">"} {
				v.s.contract = b
				w := &watch{view: v.s, keys: keys}
				bytes := w.buffer() * int(subject.MaxPayloadOf(g.Owner))
				if g.Owner != role.Podsync && bytes > liveBytes {
					t.Errorf("%d bytes of %s may wait for a watch of %s/%s", bytes, g.Owner, b.Name, keys)
				}
				if w.buffer() < 64 {
					t.Errorf("%d messages may wait for a watch of %s/%s, fewer than there are at once", w.buffer(), b.Name, keys)
				}
			}
		}
	}
}
