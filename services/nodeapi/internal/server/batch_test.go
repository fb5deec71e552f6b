package server

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// reader is a connection that notes what it is handed.
type reader struct {
	http.ResponseWriter
	got       []string
	deadlines []time.Time
	broken    error
}

func (r *reader) Header() http.Header { return http.Header{} }
func (r *reader) WriteHeader(int)     {}
func (r *reader) FlushError() error   { return r.broken }

func (r *reader) SetWriteDeadline(t time.Time) error {
	r.deadlines = append(r.deadlines, t)
	return nil
}

func (r *reader) Write(p []byte) (int, error) {
	if r.broken != nil {
		return 0, r.broken
	}
	r.got = append(r.got, string(p))
	return len(p), nil
}

func write(t *testing.T, b *batch, line string) {
	t.Helper()
	if n, err := b.Write([]byte(line)); n != len(line) || err != nil {
		t.Errorf("wrote %d of %d: %v", n, len(line), err)
	}
}

func TestLinesThatAreReadTogetherGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{}
		b := (&Server{options: Options{LongWrite: time.Minute}}).newBatch(r)
		want := []time.Time{time.Now().Add(time.Minute)}
		if err := b.begin(); err != nil { // the header, before anything is written
			t.Fatal(err)
		}
		for _, lines := range []string{"a", "bcd", "", "e"} {
			time.Sleep(time.Hour)
			for _, line := range lines {
				write(t, b, string(line))
			}
			if lines != "" {
				want = append(want, time.Now().Add(time.Minute)) // each delivery has its own time
			}
			if anything, err := b.CaughtUp(); err != nil || anything != (lines != "") {
				t.Errorf("after %q there was anything to deliver: %t, %v", lines, anything, err)
			}
		}
		if diff := cmp.Diff([]string{"", "a", "bcd", "e"}, r.got); diff != "" {
			t.Errorf("deliveries:\n%s", diff)
		}
		if diff := cmp.Diff(want, r.deadlines); diff != "" {
			t.Errorf("deadlines:\n%s", diff)
		}
	})
}

func TestMuchGoesOutBeforeAllIsRead(t *testing.T) {
	r := &reader{}
	b := (&Server{}).newBatch(r)
	line := strings.Repeat("x", 1023) + "\n"
	for range 65 {
		write(t, b, line)
	}
	for _, want := range []bool{true, false} {
		if anything, err := b.CaughtUp(); err != nil || anything != want {
			t.Errorf("there was anything to deliver: %t, %v, want %t", anything, err, want)
		}
	}
	if whole := strings.Join(r.got, ""); whole != strings.Repeat(line, 65) {
		t.Errorf("%d bytes arrived", len(whole))
	}
	if len(r.got) != 5 || len(r.got[1]) != batchSize {
		t.Errorf("%d deliveries, the second of %d bytes", len(r.got), len(r.got[1]))
	}
	for _, d := range r.deadlines {
		if !d.IsZero() {
			t.Errorf("a reader with all the time has a deadline: %s", d)
		}
	}
}

// TestReaderThatIsGone ends the reading of the log.
func TestReaderThatIsGone(t *testing.T) {
	r := &reader{broken: errors.New("gone")}
	b := (&Server{}).newBatch(r)
	write(t, b, "a") // held
	if _, err := b.CaughtUp(); !errors.Is(err, r.broken) {
		t.Errorf("who learns of the end of the log gets %v", err)
	}
	if _, err := b.Write([]byte("c")); !errors.Is(err, r.broken) {
		t.Errorf("the writer gets %v", err)
	}
	b.deliver()
	if len(r.got) != 0 || len(r.deadlines) != 1 {
		t.Errorf("who has gone was tried %d times", len(r.deadlines))
	}
}
