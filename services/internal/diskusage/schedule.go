package diskusage

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

// schedule decides which directory gets the next slice, and in which child. Only Run's goroutine uses it.
type schedule struct {
	m       *Measurer
	began   time.Time
	targets map[Dir]*target
	workers []*worker // the oldest first
	devices map[deviceID]*device
	mounts  mounts
	// mountsRead is when; zero if what is tracked has changed since.
	mountsRead time.Time
	budget     budget
	lastWalk   uint64
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
	device deviceID
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

// worker is a child.
type worker struct {
	process process
	// busy is the target of the slice under way, on which device, since when, and how many entries were granted.
	busy    *target
	device  deviceID
	since   time.Time
	granted int
	// checked says that the device was looked up again after the child had fallen silent.
	checked bool
	// walks are the targets with a walk under way here.
	walks map[*target]bool
	// drop are walks that the child must drop.
	drop      []uint64
	abandoned bool
}

// device is what is known of one.
type device struct {
	// hanging is how many abandoned children it holds.
	hanging int
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
		devices: map[deviceID]*device{},
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
	s.mountsRead = time.Time{}
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

// dispatch gives out slices as long as there is a child, a target and a budget for one, and looks after the children.
func (s *schedule) dispatch(now time.Time) {
	s.watch(now)
	for s.budget.allows(now) {
		t, w := s.next(now)
		if t == nil {
			break
		}
		s.grant(t, w, now)
	}
	for _, w := range slices.Clone(s.workers) {
		if !w.abandoned && w.busy == nil && len(w.walks) == 0 && now.Sub(w.since) >= linger {
			w.process.kill()
			s.remove(w)
		}
	}
	s.show()
	s.m.progress(s.stuck(), s.answered)
}

// stuck are the targets that do not answer, or that are on devices that do not.
func (s *schedule) stuck() map[Dir]bool {
	all := map[Dir]bool{}
	for dir, t := range s.targets {
		if d := s.devices[t.device]; t.stuck || d == nil || !d.answered || d.hanging > 0 {
			all[dir] = true
		}
	}
	return all
}

// next picks the next target and the worker for it, and starts the worker if that is needed.
func (s *schedule) next(now time.Time) (*target, *worker) {
	free, mayStart := s.free(now)
	if free == nil && !mayStart {
		return nil, nil
	}
	var best *target
	for _, t := range s.targets {
		if t.turn.After(now) || best != nil && !before(t, best) || !s.eligible(t, free, mayStart, now) {
			continue
		}
		best = t
	}
	if best == nil || best.worker != nil {
		return best, workerOf(best)
	}
	if free == nil || len(free.walks) >= maxWalks {
		if free = s.startWorker(now); free == nil {
			return nil, nil
		}
	}
	return best, free
}

func workerOf(t *target) *worker {
	if t == nil {
		return nil
	}
	return t.worker
}

// before orders targets by their turns, and those of one round by the age of their figures. The paths make the order
// certain.
func before(a, b *target) bool {
	if c := cmp.Or(a.turn.Compare(b.turn), a.began.Compare(b.began)); c != 0 {
		return c < 0
	}
	return cmp.Or(cmp.Compare(a.dir.Path, b.dir.Path), cmp.Compare(a.dir.Mode, b.dir.Mode)) < 0
}

// free returns a child that has nothing to do, one with room for another walk first, and whether another may be
// started: if each child is silent, and there are not too many.
func (s *schedule) free(now time.Time) (free *worker, mayStart bool) {
	mayStart = len(s.workers) < maxChildren
	for _, w := range s.workers {
		if w.abandoned || s.silent(w, now) {
			continue
		}
		mayStart = false
		if w.busy == nil && (free == nil || len(free.walks) >= maxWalks) {
			free = w
		}
	}
	return free, mayStart
}

// eligible reports whether the target can have a slice now.
func (s *schedule) eligible(t *target, free *worker, mayStart bool, now time.Time) bool {
	if t.worker != nil { // its walk is under way, in a child that may have something else to do
		return !t.worker.abandoned && t.worker.busy == nil
	}
	if !mayStart && (len(free.walks) >= maxWalks || t.large && free.large() >= maxLarge) {
		return false
	}
	t.device = s.deviceOf(t.dir.Path, now)
	d := s.devices[t.device]
	if d == nil {
		return !s.lastChild(now)
	}
	if d.hanging > 0 || now.Before(d.rests) || s.silentOn(t.device, now) {
		return false
	}
	return d.answered || !s.lastChild(now)
}

// lastChild reports whether there is only one child left, started or not, that is neither silent nor abandoned. It
// takes no directory that may cost it.
func (s *schedule) lastChild(now time.Time) bool {
	left := maxChildren - len(s.workers)
	for _, w := range s.workers {
		if !w.abandoned && !s.silent(w, now) {
			left++
		}
	}
	return left <= 1
}

// silent reports whether the child has not answered for so long that others should take over.
func (s *schedule) silent(w *worker, now time.Time) bool {
	return w.busy != nil && now.Sub(w.since) >= s.m.config.silent
}

// silentOn reports whether a child has been silent on the device for so long that no other should ask it.
func (s *schedule) silentOn(id deviceID, now time.Time) bool {
	return slices.ContainsFunc(s.workers, func(w *worker) bool {
		return w.device == id && s.silent(w, now)
	})
}

// deviceOf returns the device of a path, by mounts that are no older than a period or the last change of what is
// tracked.
func (s *schedule) deviceOf(path string, now time.Time) deviceID {
	if s.mountsRead.IsZero() || now.Sub(s.mountsRead) >= s.m.config.Period {
		list, err := s.m.config.mounts()
		if err != nil {
			s.m.config.Log.Warn("mounts cannot be read; a device that hangs may delay others", logkey.Err, err)
		} else {
			s.mounts = list
		}
		s.mountsRead = now
		s.forgetDevices()
	}
	return s.mounts.device(path)
}

// forgetDevices drops what is known of devices that are no longer mounted.
func (s *schedule) forgetDevices() {
	mounted := map[deviceID]bool{}
	for _, id := range s.mounts {
		mounted[id] = true
	}
	maps.DeleteFunc(s.devices, func(id deviceID, d *device) bool { return d.hanging == 0 && !mounted[id] })
}

// startWorker returns a new child, or nil.
func (s *schedule) startWorker(now time.Time) *worker {
	w := &worker{walks: map[*target]bool{}, since: now}
	if err := s.m.start(w); err != nil {
		s.m.config.Log.Error("directories are not measured", logkey.Err, err)
		s.budget.rest(now, s.m.config.Period) // the next try is the next round's
		return nil
	}
	s.workers = append(s.workers, w)
	return w
}

// grant gives the target a slice.
func (s *schedule) grant(t *target, w *worker, now time.Time) {
	if t.worker == nil {
		s.lastWalk++
		t.due, t.previous = t.turn, t.began
		t.walk, t.worker, t.began, t.entries = s.lastWalk, w, now, 0
		w.walks[t] = true
	}
	w.busy, w.device, w.since, w.granted, w.checked = t, t.device, now, s.budget.take(), false
	q := request{Walk: t.walk, Path: t.dir.Path, Mode: t.dir.Mode, Entries: w.granted, Drop: w.drop}
	w.drop = nil
	if err := w.process.ask(q); err != nil {
		s.m.config.Log.Warn("child that measures directories takes no request", logkey.Err, err)
		w.process.kill() // and its end is reported
	}
}

// handle takes what a child reports.
func (s *schedule) handle(e event, now time.Time) {
	w, a := e.from, e.answer
	if a == nil {
		s.ended(w, now)
		return
	}
	t := w.busy
	if t == nil || w.abandoned {
		return // an answer that came too late
	}
	if a.Walk != t.walk {
		s.m.config.Log.Warn("child that measures directories sent an answer without a request")
		w.process.kill()
		return
	}
	if a.Entries > w.granted {
		s.m.config.Log.Warn("child that measures directories looked at more entries than it was granted")
		w.process.kill()
		return
	}
	s.m.metrics.Entries.Add(float64(a.Entries))
	t.entries += a.Entries
	s.budget.give(w.granted - max(a.Entries, 1))
	w.busy, w.since, w.granted = nil, now, 0
	d := s.device(w.device)
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

// watch looks after the children that are silent.
func (s *schedule) watch(now time.Time) {
	for _, w := range s.workers {
		if w.abandoned || !s.silent(w, now) {
			continue
		}
		if !w.checked { // it may hang on what was mounted there since the mounts were read
			s.mountsRead = time.Time{}
			w.device, w.checked = s.deviceOf(w.busy.dir.Path, now), true
		}
		if now.Sub(w.since) >= s.m.config.hung {
			s.abandon(w, now)
		}
	}
}

// abandon kills a child that hangs, and does not wait for it.
func (s *schedule) abandon(w *worker, now time.Time) {
	d := s.device(w.device)
	d.hanging++
	d.answered = false
	w.abandoned = true
	w.process.kill()
	s.release(w)
	s.fail(w.busy, "its device does not answer", resultHung, now)
}

// release takes all walks from a worker that will not go on with them. They start again elsewhere.
func (s *schedule) release(w *worker) {
	for t := range w.walks {
		t.end()
	}
}

// ended is called for a child that has ended, by itself or because it was killed.
func (s *schedule) ended(w *worker, now time.Time) {
	s.release(w)
	s.remove(w)
	switch {
	case w.abandoned:
		d := s.device(w.device)
		d.hanging--
		d.hung++
		d.rests = now.Add(rest(s.m.config.Period, d.hung))
	case w.busy != nil:
		s.fail(w.busy, "the child ended that measured it", resultFailed, now)
	}
}

func (s *schedule) device(id deviceID) *device {
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
	abandoned := 0
	for _, w := range s.workers {
		if w.abandoned {
			abandoned++
		}
	}
	s.m.metrics.show(len(s.workers)-abandoned, abandoned)
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
		switch {
		case w.abandoned:
		case w.busy != nil:
			sooner(w.since.Add(s.m.config.silent))
			sooner(w.since.Add(s.m.config.hung))
		case len(w.walks) == 0:
			sooner(w.since.Add(linger))
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
	for _, w := range s.workers {
		w.process.kill()
	}
	s.workers = slices.DeleteFunc(s.workers, func(w *worker) bool { return w.abandoned })
	timeout := time.NewTimer(stopWithin)
	defer timeout.Stop()
	for len(s.workers) > 0 {
		select {
		case e := <-s.m.events:
			if e.answer == nil {
				s.remove(e.from)
			}
		case <-timeout.C:
			return
		}
	}
}
