package relist

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/signal"
)

// Figures of the event stream.
const (
	// backlog is how many events may wait; the kubelet's event channel has the same size.
	backlog = 1000
	// settled is how long a stream must stay open, or how soon deliver an event, to count as up:
	// a proxy opens a stream before it knows whether the runtime has one.
	settled = time.Second
	// firstBackoff and lastBackoff bound the pause between two tries. The kubelet gives up after
	// five tries for good; here the relist carries on at its fastest and the tries grow rare.
	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second
	// absentBackoff is the pause after a runtime has said that it has no event stream.
	absentBackoff = 5 * time.Minute
)

// ErrNoStream is what a Streamer's error wraps when the runtime does not implement the stream.
var ErrNoStream = errors.New("the runtime has no event stream")

var errStreamClosed = errors.New("the runtime closed the event stream")

type messageKind int

const (
	messageUp messageKind = iota
	messageDown
	messageEvent
)

type message struct {
	kind  messageKind
	event StreamEvent
}

// stream keeps one event stream open.
type stream struct {
	streamer   Streamer
	log        *slog.Logger
	metrics    *metrics
	messages   chan message
	overflowed atomic.Bool // events were dropped since the loop looked last

	tries signal.Signal // ends the pause before the next try

	mu     sync.Mutex
	cancel context.CancelFunc // of the stream that is open
}

func newStream(s Streamer, log *slog.Logger, m *metrics) *stream {
	return &stream{
		streamer: s,
		log:      log,
		metrics:  m,
		messages: make(chan message, backlog),
		tries:    signal.New(),
	}
}

// retry opens the stream at once if it waits to be opened again.
func (s *stream) retry() { s.tries.Set() }

// restart closes the open stream; run opens the next one.
func (s *stream) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

func (s *stream) run(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		s.tries.Clear() // it is from before this try
		began := time.Now()
		up, err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		s.metrics.connectionErrors.Inc()
		if up && time.Since(began) > lastBackoff {
			backoff = firstBackoff
		}
		pause := backoff
		if errors.Is(err, ErrNoStream) {
			pause = absentBackoff
		}
		s.log.Warn("event stream ended, will open it again", logkey.Err, err, logkey.Delay, pause)
		backoff = min(2*backoff, lastBackoff)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-s.tries:
			timer.Stop()
			backoff = firstBackoff
		}
	}
}

// once opens the stream, follows it to its end, and reports whether it was ever up.
func (s *stream) once(parent context.Context) (up bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()

	// The timer's function and the streamer's goroutine both may find that the stream is up.
	var once sync.Once
	var wasUp atomic.Bool
	isUp := func() {
		once.Do(func() {
			wasUp.Store(true)
			s.send(ctx, message{kind: messageUp})
		})
	}
	var settling *time.Timer
	var settlers sync.WaitGroup
	err = s.streamer.Stream(ctx, func() {
		s.metrics.connected.Inc()
		settlers.Add(1)
		settling = time.AfterFunc(settled, func() { defer settlers.Done(); isUp() })
	}, func(ev StreamEvent) {
		isUp()
		select {
		case s.messages <- message{kind: messageEvent, event: ev}:
		default:
			s.metrics.discarded.Inc()
			s.overflowed.Store(true)
		}
	})
	cancel()
	if settling != nil && settling.Stop() {
		settlers.Done()
	}
	settlers.Wait() // so that no "up" follows the "down"
	if wasUp.Load() {
		s.send(parent, message{kind: messageDown})
	}
	if err == nil {
		err = errStreamClosed
	}
	return wasUp.Load(), err
}

func (s *stream) send(ctx context.Context, m message) {
	select {
	case s.messages <- m:
	case <-ctx.Done():
	}
}
