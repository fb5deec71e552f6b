package delivery

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/tracing"
)

const (
	// giveUpAfter bounds how long an Event is tried that the apiserver answers with a server error. An apiserver
	// that does not answer at all is waited for without bound.
	giveUpAfter = 10 * time.Minute
	// maxRefused bounds the Events that wait aside; the rest of subject.OutboxMaxPending is for the others. Past it the
	// one that has been refused longest is given up, at once if the apiserver accepts others, and else after
	// refusedPatience.
	maxRefused      = subject.OutboxMaxPending * 3 / 4
	refusedPatience = time.Minute
	// An Event that waits aside is tried again after retryRefusedMin, then twice that, up to retryRefusedMax.
	retryRefusedMin = time.Second
	retryRefusedMax = 30 * time.Second
)

// lane holds the Events about one object, which are delivered in their order: all that the correlator remembers is
// about one object, and it must know what became of one Event before it sees the next. Its fields are guarded by
// Delivery.mu.
type lane struct {
	of      corev1.ObjectReference
	queue   []*item
	running bool               // drain runs
	refused map[string]*series // wait aside, by the name of the Event that they create or patch
}

// series is an Event to be created or patched, and what was recorded for it. While it waits aside, later occurrences
// join it: their result includes those before.
type series struct {
	lane   *lane
	about  string // for the log
	result *record.EventCorrelateResult
	items  []*item

	// What follows is set once it waits aside, and from then on result and items are guarded by Delivery.mu, too.
	since  time.Time          // refused since; zero while the apiserver is not reached
	giveUp context.CancelFunc // ends its attempts
}

// about names what an Event is about, for the log.
func about(e *corev1.Event) string {
	return e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name + " " + e.Reason
}

// enqueue gives an item to its lane. The caller holds d.mu.
func (d *Delivery) enqueue(ctx context.Context, it *item) {
	of := it.event.InvolvedObject
	of.FieldPath, of.ResourceVersion = "", ""
	l := d.lanes[of]
	if l == nil {
		l = &lane{of: of, refused: map[string]*series{}}
		d.lanes[of] = l
	}
	l.queue = append(l.queue, it)
	if !l.running {
		l.running = true
		d.work.Go(func() { d.drain(ctx, l) })
	}
}

// next takes the first item of a lane; nil ends its drain.
func (d *Delivery) next(l *lane) *item {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(l.queue) == 0 {
		l.running = false
		d.removeIdle(l)
		return nil
	}
	it := l.queue[0]
	l.queue = l.queue[1:]
	return it
}

// removeIdle removes a lane that nothing is in. The caller holds d.mu.
func (d *Delivery) removeIdle(l *lane) {
	if !l.running && len(l.refused) == 0 && d.lanes[l.of] == l {
		delete(d.lanes, l.of)
	}
}

// drain delivers what a lane holds, in its order.
func (d *Delivery) drain(ctx context.Context, l *lane) {
	for it := d.next(l); it != nil; it = d.next(l) {
		result, err := d.correlator.EventCorrelate(it.event)
		if err != nil {
			d.log.Warn("an event cannot be correlated, and is created as it is", logkey.Err, err)
			result = &record.EventCorrelateResult{Event: it.event}
		}
		if result.Skip {
			d.finish(ctx, "filtered", it)
			continue
		}
		s := &series{lane: l, about: about(it.event), result: result, items: []*item{it}}
		if d.join(s) {
			continue
		}
		if !d.deliver(ctx, s) {
			return // ctx ended; the bus gives the rest out again
		}
	}
}

// join adds to a series of the same Event that waits aside, if there is one.
func (d *Delivery) join(s *series) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	waiting := s.lane.refused[s.result.Event.Name]
	if waiting == nil {
		return false
	}
	waiting.result = s.result
	waiting.items = append(waiting.items, s.items...)
	return true
}

// deliver tries until there is an answer. A refused series is set aside, so that the next of the lane may come. It
// returns false when ctx ended before.
func (d *Delivery) deliver(ctx context.Context, s *series) bool {
	ctx, span := d.tracer.Continue(ctx, s.items[0].recordedIn, "deliverEvent")
	span.Set(tracing.EventReason, s.result.Event.Reason)
	var failed error
	defer func() { span.End(failed) }()
	for {
		if d.limit.Wait(ctx) != nil {
			return false
		}
		a := d.attempt(ctx, s.result)
		if ctx.Err() != nil {
			return false
		}
		switch a.kind {
		case answered:
			d.settle(a)
			d.finish(ctx, a.outcome, s.items...)
			return true
		case refused:
			d.retries.Inc()
			d.log.Warn("the apiserver does not take an event, which is tried again beside the others", "event", s.about,
				logkey.Err, a.err)
			d.setAside(ctx, s)
			failed = a.err
			return true
		case unreachable:
			d.retries.Inc()
			if !d.reach.wait(ctx) {
				return false
			}
		}
	}
}

// settle takes note of a final answer.
func (d *Delivery) settle(a answer) {
	if a.stored == nil {
		return
	}
	d.correlator.UpdateState(a.stored)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accepted = time.Now()
}

// setAside lets a refused series wait beside its lane.
func (d *Delivery) setAside(ctx context.Context, s *series) {
	attempts, giveUp := context.WithCancel(ctx)
	d.mu.Lock()
	s.since, s.giveUp = time.Now(), giveUp
	s.lane.refused[s.result.Event.Name] = s
	d.refused[s] = true
	d.mu.Unlock()
	d.work.Go(func() {
		defer giveUp()
		if !d.retryRefused(attempts, s) && ctx.Err() == nil {
			d.log.Error("abandoned an event that the apiserver does not take", "event", s.about)
			d.finish(ctx, "abandoned", s.items...)
		}
	})
	d.limitRefused()
}

// retryRefused tries a series that waits aside until it is answered; it returns false when ctx ended before.
func (d *Delivery) retryRefused(ctx context.Context, s *series) bool {
	for wait := retryRefusedMin; pause.For(ctx, wait) == nil; wait = min(2*wait, retryRefusedMax) {
		if !d.limit.TryAccept() {
			continue // the others come first
		}
		d.mu.Lock()
		result, n := s.result, len(s.items)
		d.mu.Unlock()
		a := d.attempt(ctx, result)
		switch {
		case a.kind == answered:
			items, all := d.leave(s, n, a)
			d.finish(ctx, a.outcome, items...)
			if all {
				return true
			}
			wait = retryRefusedMin / 2
		case ctx.Err() == nil:
			d.retries.Inc()
			d.log.Debug("an event is still not taken", "event", s.about, logkey.Err, a.err)
			d.tried(s, a)
			if a.kind == unreachable {
				d.reach.wait(ctx)
			}
		}
	}
	return false
}

// leave takes the items that an answer is about out of a series that waited aside, which ends its wait unless another
// occurrence has joined since.
func (d *Delivery) leave(s *series, n int, a answer) (items []*item, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.stored != nil {
		d.accepted = time.Now()
	}
	items, s.items = s.items[:n], s.items[n:]
	if len(s.items) > 0 {
		return items, false
	}
	if a.stored != nil {
		d.correlator.UpdateState(a.stored) // before the next of its lane can be correlated
	}
	d.remove(s)
	return items, true
}

// remove ends the wait of a series. The caller holds d.mu.
func (d *Delivery) remove(s *series) {
	delete(d.refused, s)
	if name := s.result.Event.Name; s.lane.refused[name] == s {
		delete(s.lane.refused, name)
	}
	d.removeIdle(s.lane)
}

// tried notes an attempt that failed, and gives a series up that has been refused too long.
func (d *Delivery) tried(s *series, a answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case a.kind == unreachable:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = time.Now()
	case time.Since(s.since) > giveUpAfter:
		d.remove(s)
		s.giveUp()
	}
}

// limitRefused gives up what has been refused longest while too much waits aside.
func (d *Delivery) limitRefused() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		waiting, oldest := 0, (*series)(nil)
		for s := range d.refused {
			waiting += len(s.items)
			if !s.since.IsZero() && (oldest == nil || s.since.Before(oldest.since)) {
				oldest = s
			}
		}
		if waiting <= maxRefused || oldest == nil ||
			!d.accepted.After(oldest.since) && time.Since(oldest.since) < refusedPatience {
			return
		}
		d.remove(oldest)
		oldest.giveUp()
	}
}
