package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
)

// testView is a view of PROBE_RESULTS without a connection, that records what it was called for.
func testView(t *testing.T) (*View[*wrapperspb.StringValue], *[]string) {
	t.Helper()
	dir := t.TempDir()
	if err := GenerateNKeys(dir, []role.Identity{{Role: role.Podsync, UID: os.Getuid(), GID: os.Getgid()}}); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{
		Socket:   dir + "/nats.sock",
		SeedFile: SeedFile(dir, role.Podsync),
		Role:     role.Podsync,
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	reported := &[]string{}
	return Watch[wrapperspb.StringValue](c, subject.ProbeResults, ">",
			func(key string) { *reported = append(*reported, key) }),
		reported
}

func put(writer string, epoch int64, rev uint64, key, val string) entry {
	raw, err := proto.Marshal(wrapperspb.String(val))
	if err != nil {
		panic(err)
	}
	return entry{key: key, writer: writer, epoch: epoch, rev: rev, value: raw}
}

func del(writer string, epoch int64, rev uint64, key string) entry {
	return entry{key: key, writer: writer, epoch: epoch, rev: rev, deleted: true}
}

func mark(writer string, epoch int64) entry {
	return entry{key: subject.EpochKeyOf(writer), writer: writer, epoch: epoch}
}

// TestOnlyChangesAreDecoded: after a reconnect, the list of the bucket has all of it once more.
func TestOnlyChangesAreDecoded(t *testing.T) {
	const a, k = "prober.a", "p.c.liveness"
	typed, _ := testView(t)
	var decoded []string
	v := WatchDecoded(typed.s.c, subject.ProbeResults, ">", func(key string, _ []byte) (string, error) {
		decoded = append(decoded, key)
		return "decoded", nil
	}, nil)
	for range 2 {
		v.s.apply(put(a, 1, 1, k, "x"))
		v.s.apply(put(a, 1, 2, k, "x"))
		v.s.apply(put(a, 2, 1, k, "x"))
	}
	if got, ok := v.Get(k); len(decoded) != 1 || !ok || got != "decoded" {
		t.Errorf("one value is %q and was decoded %d times", got, len(decoded))
	}
	v.s.apply(put(a, 2, 2, k, "y"))
	if len(decoded) != 2 || decoded[1] != k {
		t.Errorf("decoded %q", decoded)
	}
}

func TestViewKeepsWhatIsNewest(t *testing.T) {
	const a, b, k = "prober.a", "prober.b", "p.c.liveness"
	tests := map[string]struct {
		in   []entry
		want map[string]string
	}{
		"the later put": {[]entry{put(a, 1, 1, k, "x"), put(a, 1, 2, k, "y")}, map[string]string{
			k: "y",
		}},
		"an older revision is late": {[]entry{put(a, 1, 2, k, "y"), put(a, 1, 1, k, "x")}, map[string]string{
			k: "y",
		}},
		"an older epoch is late": {[]entry{put(a, 2, 1, k, "y"), put(a, 1, 9, k, "x")}, map[string]string{
			k: "y",
		}},
		"another writer takes over": {[]entry{put(a, 9, 9, k, "x"), put(b, 1, 1, k, "y")}, map[string]string{
			k: "y",
		}},
		"a delete":                {[]entry{put(a, 1, 1, k, "x"), del(a, 1, 2, k)}, map[string]string{}},
		"a delete that is late":   {[]entry{put(a, 1, 3, k, "x"), del(a, 1, 2, k)}, map[string]string{k: "x"}},
		"a stale key at the mark": {[]entry{put(a, 1, 1, k, "x"), mark(a, 2)}, map[string]string{}},
		"not stale: put again": {[]entry{put(a, 1, 1, k, "x"), put(a, 2, 1, k, "x"), mark(a, 2)}, map[string]string{
			k: "x",
		}},
		"not stale: another replica's mark": {[]entry{put(a, 1, 1, k, "x"), mark(b, 2)}, map[string]string{k: "x"}},
		"an old put after the mark":         {[]entry{mark(a, 2), put(a, 1, 1, k, "x")}, map[string]string{}},
		"an old mark": {[]entry{mark(a, 2), put(a, 2, 1, k, "x"), mark(a, 1)}, map[string]string{
			k: "x",
		}},
		"a value that cannot be decoded": {[]entry{put(a, 1, 1, k, "x"),
			{key: k, writer: a, epoch: 1, rev: 2, value: []byte{0xff}}}, map[string]string{
			k: "x",
		}},
		"keys are kept before the mark came": {[]entry{put(a, 1, 1, k, "x"), put(a, 2, 1, "q.c.liveness", "y")},
			map[string]string{
				k:              "x",
				"q.c.liveness": "y",
			}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v, _ := testView(t)
			for _, e := range tt.in {
				v.s.apply(e)
			}
			got := map[string]string{}
			for key, m := range v.All() {
				got[key] = m.GetValue()
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("the view holds %v, want %v", got, tt.want)
			}
		})
	}
}

// TestViewKnowsTheTraceOfAValue, and counts it as a part of what it holds.
func TestViewKnowsTheTraceOfAValue(t *testing.T) {
	v, reported := testView(t)
	const a, k, in = "prober.a", "p.c.liveness", "00-1-2-01"
	v.s.apply(put(a, 1, 1, k, "x"))
	held := v.s.held[role.Prober]
	traced := put(a, 1, 2, k, "x")
	traced.traceparent = in
	v.s.apply(traced)
	if got := v.Traceparent(k); got != in || v.Traceparent("another") != "" {
		t.Errorf("the key is of %q, another one of %q", got, v.Traceparent("another"))
	}
	if grown := v.s.held[role.Prober] - held; grown != int64(len(in)) {
		t.Errorf("the trace counts as %d bytes", grown)
	}
	v.s.apply(put(a, 1, 3, k, "x"))
	if got := v.Traceparent(k); got != "" || len(*reported) != 1 {
		t.Errorf("put again without a trace it is of %q; called for %v", got, *reported)
	}
}

func TestViewTellsOfChangesOnly(t *testing.T) {
	v, reported := testView(t)
	const a, k = "prober.a", "p.c.liveness"
	for _, e := range []entry{put(a, 1, 1, k, "x"), put(a, 1, 2, k, "x"), mark(a, 1), put(a, 1, 3, k, "y"),
		del(a, 1, 4, k), del(a, 1, 5, k)} {
		v.s.apply(e)
	}
	if got, want := fmt.Sprint(*reported), fmt.Sprint([]string{k, k, k}); got != want {
		t.Errorf("called for %s, want %s", got, want)
	}
}

// What a reader held, the bucket does not hold, and its writer's mark is there: it is gone for good.
func TestUnlistedKeysGoWithTheirWritersMarkOnly(t *testing.T) {
	v, _ := testView(t)
	for _, e := range []entry{put("prober.a", 1, 1, "p.c.liveness", "x"), mark("prober.a", 1),
		put("prober.b", 1, 1, "q.c.liveness", "y")} {
		v.s.apply(e)
	}
	v.s.dropUnlisted(map[string]bool{}, nil)
	if len(v.All()) != 2 {
		t.Fatalf("an empty bucket made the reader drop keys: it has %v", v.All())
	}
	v.s.dropUnlisted(map[string]bool{subject.EpochKeyOf("prober.a"): true}, nil)
	if _, ok := v.Get("p.c.liveness"); ok {
		t.Error("a key that its writer's bucket does not hold is kept")
	}
	if _, ok := v.Get("q.c.liveness"); !ok {
		t.Error("a key of a writer without a mark was dropped")
	}
}

func TestEntriesOfOthersAreRejected(t *testing.T) {
	v, _ := testView(t)
	if !v.s.authentic(put("prober.a", 1, 1, "p.c.liveness", ""), nil) {
		t.Error("the owner's entry was rejected")
	}
	for name, e := range map[string]entry{
		"another service's":      put("stats.0", 1, 1, "p.c.liveness", ""),
		"no key of the contract": put("prober.a", 1, 1, "p", ""),
		"unsigned":               put("", 1, 1, "p.c.liveness", ""),
		"too long a token":       put("prober.a", 1, 1, strings.Repeat("x", 254)+".c.liveness", ""),
		"a path":                 del("prober.a", 1, 1, "p.c/d.liveness"),
		"another's mark":         {key: "_epoch.podsync.0", writer: "podsync.0", epoch: 1},
	} {
		if v.s.authentic(e, nil) {
			t.Errorf("%s entry was taken", name)
		}
	}
	if v.s.authentic(put("prober.a", 1, 1, "p.c.liveness", ""), errors.New("garbage")) {
		t.Error("an entry that cannot be read was taken")
	}
}

// The time that the bus was away is not held against a writer.
func TestAgeCountsWhatCouldBeHeard(t *testing.T) {
	v, _ := testView(t)
	synctest.Test(t, func(t *testing.T) {
		const k = "p.c.liveness"
		age := func() time.Duration { d, _ := v.Age(k); return d }
		if _, ok := v.Age(k); ok {
			t.Error("a key that is not there has an age")
		}
		v.s.setSynced(true)
		v.s.apply(put("prober.a", 1, 1, k, "x"))
		time.Sleep(10 * time.Second)
		if got := age(); got != 10*time.Second {
			t.Errorf("age is %v, want 10s", got)
		}
		v.s.setSynced(false)
		time.Sleep(time.Minute)
		if got := age(); got != 0 {
			t.Errorf("age is %v while the bus is away, want 0", got)
		}
		v.s.setSynced(true)
		time.Sleep(3 * time.Second)
		if got := age(); got != 3*time.Second {
			t.Errorf("age is %v after the bus's return, want 3s", got)
		}
	})
}

func TestParseViolation(t *testing.T) {
	for in, want := range map[string][2]string{
		`nats: permissions violation: Permissions Violation for Publish to "$KV.NODE.capacity"`: {"publish",
			"$KV.NODE.capacity"},
		`nats: permissions violation: Permissions Violation for Subscription to "microlet.evt.>"`: {"subscribe",
			"microlet.evt.>"},
	} {
		operation, subj, ok := parseViolation(errors.New(in))
		if !ok || operation != want[0] || subj != want[1] {
			t.Errorf("%q is %q %q %v", in, operation, subj, ok)
		}
	}
	if _, _, ok := parseViolation(errors.New("something else")); ok {
		t.Error("something else was taken for a violation")
	}
}

func TestBackoffStaysWithin(t *testing.T) {
	for attempts := range 40 {
		if d := reconnectDelay(attempts); d < reconnectMin/2 || d > reconnectMax {
			t.Errorf("attempt %d waits %v", attempts, d)
		}
	}
}
