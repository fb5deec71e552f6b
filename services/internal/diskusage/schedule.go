package diskusage

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/logkey"
)

// schedule decides which directory gets the next slice, and in which child. Only Run's goroutine uses it.
type schedule struct {
	m       *Measurer
	began   time.Time
	targets map[Dir]*target
	workers []*worker // the oldest first
	devices map[childpool.Lane]*device

	budget   budget
	lastWalk uint64
	// answered is when a child has answered last.
	answered time.Time
	// crowded says that the bound on the children was reported.
	crowded bool
}

// target is a directory that is tracked.
type target struct {
	dir Dir
	// turn is when it was due, or when its last slice ended if its walk is under way. The least goes first.
	turn time.Time
	// The walk under way: its number and its child, and when it began or the last one did.
	walk   uint64
	worker *worker
	began  time.Time
	device childpool.Lane
	// dropped says that it is no longer tracked.
	dropped bool
	// entries is how many the walk under way has looked at. large says that this walk, or the last one, has looked at so
	// many that it may only have a place that is not kept for others.
	entries int
	large   bool
	// due and previous are turn and began as they were before the walk under way.
	due, previous time.Time
	// failed is how often in a row, and problem the last that was logged.
	failed  int
	problem string
	// stuck says that it has failed, and that no slice was answered since.
	stuck bool
}

// worker is a child that has something to do.
type worker struct {
	child *childpool.Session
	// busy is the target of the slice under way, since when, and how many entries were granted.
	busy    *target
	since   time.Time
	granted int
	// walks are the targets with a walk under way here.
	walks map[*target]bool
	// drop are walks that the child must drop.
	drop []uint64
}

// device is what is known of one.
type device struct {
	// hung is how often in a row, and rests is until when it is not asked again.
	hung  int
	rests time.Time
	// answered says that its last slice was answered.
	answered bool
}

func newSchedule(m *Measurer) *schedule {
	now := time.Now()
	return &schedule{
		m:       m,
		began:   now,
		targets: map[Dir]*target{},
		devices: map[childpool.Lane]*device{},
		budget:  newBudget(m.config.Budget, now),
	}
}

// track takes over what is wanted.
func (s *schedule) track(wanted map[Dir]bool, now time.Time) {
	for dir, t := range s.targets {
		if !wanted[dir] {
			t.dropped = true
			s.forget(t)
			delete(s.targets, dir)
		}
	}
	turn := now // the first ones wait for no others
	if len(s.targets) > 0 {
		turn = s.after(now, min(newWithin, s.m.config.Period))
	}
	for dir := range wanted {
		if s.targets[dir] == nil {
			s.targets[dir] = &target{dir: dir, turn: turn}
		}
	}
	used := map[childpool.Lane]bool{}
	for _, t := range s.targets {
		used[t.device] = true
	}
	maps.DeleteFunc(s.devices, func(id childpool.Lane, _ *device) bool { return !used[id] })
}

// after is the next multiple of the period since the start. Directories with times that are multiples of each other are
// measured together, by one child.
func (s *schedule) after(now time.Time, period time.Duration) time.Time {
	return s.began.Add((now.Sub(s.began)/period + 1) * period)
}

// forget drops the walk of a target unless a slice of it is under way.
func (s *schedule) forget(t *target) {
	if t.worker == nil || t.worker.busy == t {
		return
	}
	t.worker.drop = append(t.worker.drop, t.walk)
	t.end()
}

// end takes the target from its worker.
func (t *target) end() {
	delete(t.worker.walks, t)
	t.worker, t.walk = nil, 0
}

// dispatch gives out slices as long as there is a child, a target and a budget for one.
func (s *schedule) dispatch(ctx context.Context, now time.Time) {
	for s.budget.allows(now) {
		t, w := s.next(now)
		if t == nil {
			break
		}
		s.grant(ctx, t, w, now)
	}
	for _, w := range slices.Clone(s.workers) {
		if w.busy == nil && len(w.walks) == 0 {
			s.dismiss(w)
		}
	}
	s.show()
	s.m.progress(s.stuck(), s.answered)
}

// stuck are the targets that do not answer, or that are on devices that do not.
func (s *schedule) stuck() map[Dir]bool {
	all := map[Dir]bool{}
	for dir, t := range s.targets {
		if d := s.devices[t.device]; t.stuck || d == nil || !d.answered {
			all[dir] = true
		}
	}
	return all
}

// next picks the next target and the worker for it, and starts the worker if that is needed.
func (s *schedule) next(now time.Time) (*target, *worker) {
	free := s.free()
	answers := func(w *worker) bool { return now.Sub(w.since) < s.m.config.silent }
	if free == nil && slices.ContainsFunc(s.workers, answers) { // one will be free soon
		return nil, nil
	}
	var best *target
	for _, t := range s.targets {
		if t.turn.After(now) || best != nil && !before(t, best) || !s.eligible(t, free, now) {
			continue
		}
		best = t
	}
	switch {
	case best == nil:
		return nil, nil
	case best.worker != nil:
		return best, best.worker
	case free != nil:
		return best, free
	}
	if w := s.startWorker(now); w != nil {
		return best, w
	}
	return nil, nil
}

// before orders targets by their turns, and those of one round by the age of their figures. The paths make the order
// certain.
func before(a, b *target) bool {
	if c := cmp.Or(a.turn.Compare(b.turn), a.began.Compare(b.began)); c != 0 {
		return c < 0
	}
	return cmp.Or(cmp.Compare(a.dir.Path, b.dir.Path), cmp.Compare(a.dir.Mode, b.dir.Mode)) < 0
}

// free returns a child that has nothing to do, one with room for another walk first.
func (s *schedule) free() (free *worker) {
	for _, w := range s.workers {
		if w.busy == nil && (free == nil || len(free.walks) >= maxWalks) {
			free = w
		}
	}
	return free
}

// eligible reports whether the target can have a slice now: in the child that has begun its walk, in one that is free,
// or in another one if each is silent. A device on which a child is silent, or was left behind, gets no other one. The
// last child takes no directory that may cost it.
func (s *schedule) eligible(t *target, free *worker, now time.Time) bool {
	if t.worker != nil {
		return t.worker.busy == nil && s.m.pool.Room(t.dir.Path)
	}
	if free != nil && (len(free.walks) >= maxWalks || t.large && free.large() >= maxLarge) ||
		!s.m.pool.Room(t.dir.Path) {
		return false
	}
	t.device = s.m.pool.Lane(t.dir.Path)
	d := s.devices[t.device]
	if d != nil && now.Before(d.rests) {
		return false
	}
	return d != nil && d.answered || s.m.pool.Spare() > 1
}

// startWorker returns a child that is not at work yet, or nil.
func (s *schedule) startWorker(now time.Time) *worker {
	child, err := s.m.pool.Session()
	if err != nil && !errors.Is(err, childpool.ErrFull) {
		s.m.config.Log.Error("directories are not measured", logkey.Err, err)
		s.budget.rest(now, s.m.config.Period) // the next try is the next round's
	}
	if err != nil {
		return nil
	}
	w := &worker{child: child, walks: map[*target]bool{}}
	s.workers = append(s.workers, w)
	return w
}

// dismiss leaves a child without a walk to those that need one later.
func (s *schedule) dismiss(w *worker) {
	s.remove(w)
	if len(w.drop) > 0 {
		w.child.End()
		return
	}
	w.child.Keep()
}

// grant gives the target a slice.
func (s *schedule) grant(ctx context.Context, t *target, w *worker, now time.Time) {
	if t.worker == nil {
		s.lastWalk++
		t.due, t.previous = t.turn, t.began
		t.walk, t.worker, t.began, t.entries = s.lastWalk, w, now, 0
		w.walks[t] = true
	}
	w.busy, w.since, w.granted = t, now, s.budget.take()
	q := &request{Walk: t.walk, Path: t.dir.Path, Mode: t.dir.Mode, Entries: w.granted, Drop: w.drop}
	w.drop = nil
	w.child.Take(q.Path)
	go s.m.ask(ctx, w, q) // ends with its answer, or with the child
}

// handle takes what a child reports.
func (s *schedule) handle(e event, now time.Time) {
	w, a := e.from, e.answer
	t := w.busy
	if e.err != nil {
		s.lose(w, e.err, now)
		return
	}
	s.m.metrics.Entries.Add(float64(a.Entries))
	t.entries += a.Entries
	s.budget.give(w.granted - max(a.Entries, 1))
	w.busy, w.granted = nil, 0
	d := s.device(t.device)
	d.answered, d.hung = true, 0
	t.turn, t.stuck, s.answered = now, false, now
	switch {
	case a.Done:
		t.large = s.isLarge(t)
		t.end()
		s.finish(t, a, now)
	case t.dropped:
		s.forget(t)
	case !t.large && s.isLarge(t):
		t.large = true
		if w.large() > maxLarge {
			s.forget(t)
			t.turn, t.began = t.due, t.previous // it starts again when there is a place for it
		}
	}
}

// isLarge reports whether the walk under way has looked at more than a tenth of what a minute allows.
func (s *schedule) isLarge(t *target) bool { return t.entries > s.m.config.Budget/10 }

// large is how many walks of large directories are under way in the child.
func (w *worker) large() int {
	n := 0
	for t := range w.walks {
		if t.large {
			n++
		}
	}
	return n
}

// finish stores what the walk found.
func (s *schedule) finish(t *target, a *answer, now time.Time) {
	if t.dropped {
		return
	}
	t.turn = s.after(now, s.m.config.Period)
	result := resultDone
	switch {
	case a.Gone:
		result = resultGone
		s.m.set(t.dir, nil)
	case a.Error != "":
		s.fail(t, a.Error, resultFailed, now)
		return
	default:
		s.m.set(t.dir, &Measurement{Usage: a.Usage, Time: t.began})
		s.m.metrics.Unread.Add(float64(a.Usage.Unread))
		s.m.metrics.Duration.Observe(now.Sub(t.began).Seconds())
	}
	s.m.metrics.Walks.WithLabelValues(result).Inc()
	if t.problem != "" {
		s.m.config.Log.Info("directory can be measured again", logkey.Path, t.dir.Path)
	}
	t.failed, t.problem = 0, ""
}

// fail lets the target rest, longer each time, and says why once.
func (s *schedule) fail(t *target, problem, result string, now time.Time) {
	s.m.metrics.Walks.WithLabelValues(result).Inc()
	if t.dropped {
		return
	}
	t.turn = s.after(now.Add(rest(s.m.config.Period, t.failed)), s.m.config.Period)
	t.failed++
	t.stuck = true
	if problem != t.problem {
		s.m.config.Log.Warn("directory cannot be measured; its figure grows old", logkey.Path, t.dir.Path,
			"problem", problem)
		t.problem = problem
	}
}

// rest is how long to wait after so many failures in a row before.
func rest(period time.Duration, failed int) time.Duration {
	if failed == 0 {
		return 0
	}
	return min(period<<min(failed-1, 10), maxRest)
}

// lose is called for a child that has ended, or that hangs. Its walks start again elsewhere.
func (s *schedule) lose(w *worker, err error, now time.Time) {
	for t := range w.walks {
		t.end()
	}
	s.remove(w)
	w.child.End()
	if !errors.Is(err, childpool.ErrHangs) {
		if errors.Is(err, errAnswer) {
			s.m.config.Log.Warn("child that measures directories is killed", logkey.Err, err)
		}
		s.fail(w.busy, "the child ended that measured it", resultFailed, now)
		return
	}
	d := s.device(w.child.Lane()) // it may be what was mounted there since the walk began
	d.answered = false
	d.hung++
	d.rests = now.Add(rest(s.m.config.Period, d.hung))
	s.fail(w.busy, "its device does not answer", resultHung, now)
}

func (s *schedule) device(id childpool.Lane) *device {
	d := s.devices[id]
	if d == nil {
		d = &device{}
		s.devices[id] = d
	}
	return d
}

func (s *schedule) remove(w *worker) {
	s.workers = slices.DeleteFunc(s.workers, func(o *worker) bool { return o == w })
}

// show sets the metrics, and says once that there are too many children.
func (s *schedule) show() {
	busy, idle, abandoned := s.m.pool.Children()
	s.m.metrics.show(busy+idle, abandoned)
	crowded := abandoned >= maxChildren-1
	if crowded && !s.crowded {
		s.m.config.Log.Error("devices that do not answer hold all children but one that may measure directories; "+
			"only devices that have answered before are measured", "abandoned", abandoned)
	}
	s.crowded = crowded
}

// wake is when there is something to do without an event.
func (s *schedule) wake(now time.Time) time.Time {
	at := now.Add(s.m.config.Period)
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(at) {
			at = t
		}
	}
	for _, w := range s.workers {
		if w.busy != nil {
			sooner(w.since.Add(s.m.config.silent))
		}
	}
	for _, t := range s.targets {
		sooner(t.turn)
	}
	for _, d := range s.devices {
		sooner(d.rests)
	}
	sooner(s.budget.next())
	return at
}

// stop ends the children. It waits for them, but not for those that hang.
func (s *schedule) stop() {
	s.m.pool.Close()
	for _, w := range s.workers {
		w.child.End()
	}
	timeout := time.NewTimer(stopWithin)
	defer timeout.Stop()
	for _, w := range s.workers {
		select {
		case <-w.child.Ended():
		case <-timeout.C:
			return
		}
	}
}
