package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
)

// question is a list that takes its time and says how often it was sent.
type question struct {
	j     *joiner
	takes time.Duration

	mu   sync.Mutex
	sent []time.Time
	// answers is, per caller, the number of the call that it had the answer of.
	answers map[string]byte
	wg      sync.WaitGroup
}

func (q *question) send(ctx context.Context) (answer, error) {
	q.mu.Lock()
	q.sent = append(q.sent, time.Now())
	n := byte(len(q.sent))
	q.mu.Unlock()
	select {
	case <-time.After(q.takes):
		return answer{message: frame{data: []byte{n}}}, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

func (q *question) ask(ctx context.Context, who string) {
	q.wg.Go(func() {
		a, err := q.j.do(ctx, "list", q.send)
		q.mu.Lock()
		defer q.mu.Unlock()
		if err == nil {
			q.answers[who] = a.message.data[0]
		}
	})
	synctest.Wait()
}

func TestJoinsOnlyWhatIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{j: newJoiner(time.Minute, time.Hour), takes: 10 * time.Second, answers: map[string]byte{}}
		q.ask(t.Context(), "a") // sent at once
		time.Sleep(time.Second)
		q.ask(t.Context(), "b") // must not have a's answer
		q.ask(t.Context(), "c") // may have b's
		q.wg.Wait()
		q.ask(t.Context(), "d")
		q.wg.Wait()
		if len(q.sent) != 3 || q.answers["a"] != 1 || q.answers["b"] != 2 || q.answers["c"] != 2 ||
			q.answers["d"] != 3 {
			t.Fatalf("sent %d, answers %v", len(q.sent), q.answers)
		}
		if d := q.sent[1].Sub(q.sent[0]); d != 10*time.Second {
			t.Fatalf("the second was sent %v after the first, want when that ended", d)
		}
	})
}

func TestAListThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{j: newJoiner(time.Second, time.Hour), takes: time.Minute, answers: map[string]byte{}}
		for range 3 {
			q.ask(t.Context(), "x")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(q.sent) != 2 || q.sent[1].Sub(q.sent[0]) != time.Second {
			t.Fatalf("sent at %v", q.sent)
		}
		q.wg.Wait()
		q.j.wg.Wait()
		if len(q.j.under)+len(q.j.next) != 0 {
			t.Fatalf("left behind: %v and %v", q.j.under, q.j.next)
		}
	})
}

func TestOneWhoLeavesDoesNotCancelTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &question{j: newJoiner(time.Minute, time.Hour), takes: 10 * time.Second, answers: map[string]byte{}}
		q.ask(t.Context(), "a")
		ctx, cancel := context.WithCancel(t.Context())
		q.ask(ctx, "b")
		q.ask(t.Context(), "c")
		cancel() // b was the first of the second round
		q.wg.Wait()
		if q.answers["c"] != 2 || q.answers["b"] != 0 {
			t.Fatalf("answers %v", q.answers)
		}
	})
}

func TestACallWithoutAWaitingCallerIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(time.Minute, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error, 1)
		_, err := j.do(ctx, "list", func(ctx context.Context) (answer, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return answer{}, ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("the call ended with %v", err)
		}
		j.wg.Wait()
	})
}

func TestDifferentQuestionsAreNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(time.Minute, time.Hour)
		var mu sync.Mutex
		var sent []string
		for _, name := range []string{"a", "b"} {
			go func() {
				_, _ = j.do(t.Context(), name, func(context.Context) (answer, error) {
					mu.Lock()
					sent = append(sent, name)
					mu.Unlock()
					time.Sleep(time.Second)
					return answer{}, nil
				})
			}()
		}
		synctest.Wait()
		mu.Lock()
		slices.Sort(sent)
		if !slices.Equal(sent, []string{"a", "b"}) {
			t.Errorf("sent %v", sent)
		}
		mu.Unlock()
		j.wg.Wait()
	})
}

// TestASharedCallHasNoMetadata: metadata that one caller sends does not go with a call that others get the answer of.
func TestASharedCallHasNoMetadata(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("spoils", "the call"))
	_, err := newJoiner(time.Minute, time.Hour).do(ctx, "list", func(ctx context.Context) (answer, error) {
		if md, ok := metadata.FromOutgoingContext(outgoing(ctx)); ok {
			t.Errorf("the call has the metadata %v of its first caller", md)
		}
		return answer{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}
