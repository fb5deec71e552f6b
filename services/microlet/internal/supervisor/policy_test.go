package supervisor

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	var b backoff
	const short = 10 * time.Millisecond
	for i, want := range []time.Duration{0, 100, 200, 400, 800, 1000, 1000} {
		if got := b.next(short); got != want*time.Millisecond {
			t.Errorf("delay %d is %v, want %v", i, got, want*time.Millisecond)
		}
	}
	if got := b.next(goodLife); got != 0 {
		t.Errorf("delay after a good life is %v, want none", got)
	}
	if got := b.next(short); got != firstDelay {
		t.Errorf("delay after that is %v, want %v", got, firstDelay)
	}
}

func TestWatchdog(t *testing.T) {
	const limit = 10 * time.Second
	now := time.Unix(0, 0)
	w := newWatchdog(limit, 90*time.Second, now)
	// look looks for d in the keeper's rhythm and reports whether the watchdog expired.
	look := func(d time.Duration) bool {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(min(w.wait(now), end.Sub(now)))
			if w.expired(now) {
				return true
			}
		}
		return false
	}
	if look(80 * time.Second) {
		t.Fatal("expired before the start's time was over")
	}
	w.ready(now)
	if look(limit) {
		t.Fatal("expired before its time")
	}
	w.fed(now)
	if look(limit) {
		t.Fatal("expired although it was fed")
	}
	if !look(2 * tick) {
		t.Fatal("not expired after its time")
	}
	w.fed(now)
	now = now.Add(time.Hour) // the supervisor was stopped
	if w.expired(now) {
		t.Fatal("expired because the supervisor stood still")
	}
	if look(limit) {
		t.Fatal("expired before the process had its time again")
	}
	if !look(2 * tick) {
		t.Fatal("a process that stays silent after that is let live")
	}
	w.off()
	if look(time.Hour) {
		t.Fatal("expired although it was off")
	}
}

func TestWatchdogOfASlowStart(t *testing.T) {
	now := time.Unix(0, 0)
	w := newWatchdog(10*time.Second, 90*time.Second, now)
	for range 200 { // it feeds the watchdog and is not ready for long
		now = now.Add(time.Second)
		w.fed(now)
		if w.expired(now) {
			t.Fatalf("expired at %v although it was fed", now)
		}
	}
	for range 9 {
		now = now.Add(time.Second)
		if w.expired(now) {
			t.Fatal("expired too early")
		}
	}
	if now = now.Add(1100 * time.Millisecond); !w.expired(now) {
		t.Fatal("not expired after the silence of a start")
	}
}

func TestParseNote(t *testing.T) {
	n := parseNote("READY=1\nSTATUS=a=b\nMAINPID=1\nWATCHDOG=1\n")
	if !n.ready || !n.watchdog || n.stopping || !n.hasStatus || n.status != "a=b" {
		t.Errorf("parsed %+v", n)
	}
	// It is shown on root's terminal and passed on in a message, which bears nothing but UTF-8.
	if n := parseNote("STATUS=gr\u00fcn\x1b[1A\rpodsync\t\xff\u009b"); n.status != "grün?[1A?podsync???" {
		t.Errorf("the status is %q", n.status)
	}
	if n := parseNote("READY=0\nSTOPPING=1"); n.ready || !n.stopping || n.hasStatus {
		t.Errorf("parsed %+v", n)
	}
}

func FuzzParseNote(f *testing.F) {
	f.Add("READY=1\nSTATUS=x")
	f.Add("=\n\n=1\x00")
	f.Fuzz(func(t *testing.T, s string) {
		if n := parseNote(s); n.status != "" && !n.hasStatus {
			t.Errorf("%q has a status and none: %+v", s, n)
		}
	})
}
