package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// reader is a connection that notes what it is handed, and when.
type reader struct {
	http.ResponseWriter
	began     time.Time
	got       []string
	at        []time.Duration
	deadlines []time.Time
	broken    error
	stands    chan struct{} // not nil: nothing is taken before it is closed
}

func (r *reader) Header() http.Header { return http.Header{} }
func (r *reader) WriteHeader(int)     {}
func (r *reader) FlushError() error   { return r.broken }

func (r *reader) SetWriteDeadline(t time.Time) error {
	r.deadlines = append(r.deadlines, t)
	return nil
}

func (r *reader) Write(p []byte) (int, error) {
	if r.stands != nil {
		<-r.stands
	}
	if r.broken != nil {
		return 0, r.broken
	}
	r.got, r.at = append(r.got, string(p)), append(r.at, time.Since(r.began))
	return len(p), nil
}

func write(t *testing.T, b *batch, line string) {
	t.Helper()
	if n, err := b.Write([]byte(line)); n != len(line) || err != nil {
		t.Errorf("wrote %d of %d: %v", n, len(line), err)
	}
}

func TestLinesThatComeTogetherGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{began: time.Now()}
		b := newBatch(r, time.Minute)
		if err := b.begin(); err != nil { // the header, before anything is written
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		write(t, b, "a") // after a pause: at once
		time.Sleep(5 * time.Millisecond)
		for i := range 30 {
			write(t, b, fmt.Sprint(i%10))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Hour) // the last ones go out without another line
		write(t, b, "z")
		write(t, b, "!")
		b.close()
		if diff := cmp.Diff([]string{"", "a", "0123456789", "0123456789", "0123456789", "z", "!"}, r.got); diff != "" {
			t.Errorf("deliveries:\n%s", diff)
		}
		ms := time.Millisecond
		late := time.Hour + 1305*ms
		if diff := cmp.Diff([]time.Duration{0, 1000 * ms, 1100 * ms, 1200 * ms, 1300 * ms, late, late}, r.at); diff != "" {
			t.Errorf("times:\n%s", diff)
		}
		for i, d := range r.deadlines {
			if want := r.began.Add(r.at[i] + time.Minute); !d.Equal(want) {
				t.Errorf("delivery %d may take until %s, want %s", i, d, want)
			}
		}
	})
}

func TestManyLinesGoOutBeforeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{began: time.Now()}
		b := newBatch(r, 0)
		line := strings.Repeat("x", 1023) + "\n"
		for range 64 {
			write(t, b, line)
		}
		b.close()
		if whole := strings.Join(r.got, ""); whole != strings.Repeat(line, 64) {
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
	})
}

// TestReaderThatIsGone ends the reading of the log: by the next line, whoever noticed it.
func TestReaderThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{began: time.Now()}
		b := newBatch(r, 0)
		write(t, b, "a")
		r.broken = errors.New("gone")
		write(t, b, "b") // held back
		time.Sleep(time.Second)
		for range 2 {
			if _, err := b.Write([]byte("c")); !errors.Is(err, r.broken) {
				t.Errorf("the writer is told %v", err)
			}
		}
		b.close()
	})
}

// TestReaderThatStands holds up the writer, and no more than one batch.
func TestReaderThatStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{began: time.Now(), stands: make(chan struct{})}
		b := newBatch(r, 0)
		wrote := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 1000 {
				_, _ = b.Write([]byte("line\n"))
				wrote++
			}
		}()
		synctest.Wait()
		if wrote != 0 {
			t.Errorf("%d lines were taken for a reader that stands", wrote)
		}
		close(r.stands)
		<-done
		b.close()
		if got := strings.Join(r.got, ""); got != strings.Repeat("line\n", 1000) {
			t.Errorf("%d bytes arrived", len(got))
		}
	})
}
