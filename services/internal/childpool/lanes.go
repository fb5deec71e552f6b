package childpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

// tally counts calls that run.
type tally struct {
	calls, hung int
	// moved is when one of them last showed that it goes on. The end of a call shows in that of the call that runs next.
	moved time.Time
}

func (t *tally) add(l *lease) {
	t.calls++
	if l.hangs {
		t.hung++
	}
	if l.moved.After(t.moved) {
		t.moved = l.moved
	}
}

// tallies count all calls somewhere, and those that take long.
type tallies struct{ all, long tally }

func (t *tallies) add(l *lease) {
	t.all.add(l)
	if l.Long {
		t.long.add(l)
	}
}

// full returns the calls that leave no room for another one, where most may run, or nil.
func (t *tallies) full(long bool, most int, where string) *crowd {
	switch {
	case t.all.calls >= most:
		return &crowd{tally: t.all, where: where}
	case long && t.long.calls >= max(most/2, 1):
		return &crowd{tally: t.long, where: where, long: true}
	}
	return nil
}

// crowd are calls that leave no room for another one.
type crowd struct {
	tally
	// where says where they run: empty for the quick ones. long is set if only calls that take long count.
	where string
	long  bool
	// children says that they have all children.
	children bool
}

func (c *crowd) String() string {
	calls := fmt.Sprintf("%d other calls", c.calls)
	switch {
	case c.children:
		return fmt.Sprintf("all %d processes for calls on volumes are in use, and %d of them hang", c.calls, c.hung)
	case c.long:
		calls += " that take long " + c.where
	case c.where != "":
		calls += " " + c.where
	}
	switch c.hung {
	case 0:
		return calls + " are under way"
	case c.calls:
		return calls + " do not answer"
	}
	return fmt.Sprintf("%s are under way, and %d of them do not answer", calls, c.hung)
}

// census counts what runs at one moment.
type census struct {
	bounds Bounds
	// left are children of earlier processes.
	left int
	// children are those of calls and sessions, and hung those of them that hang.
	children, hung int
	quick          tally
	all, foreign   tallies
	// lanes, own and owners are empty if there are so few calls that no lane can be full.
	lanes  map[Lane]*tallies
	own    map[Lane]bool
	owners map[ownerLane]int
}

// ownerLane is a file system as the long calls of one owner use it.
type ownerLane struct {
	owner string
	lane  Lane
}

// count takes the census. The lock is held.
func (p *Pool) count() *census {
	n := &census{bounds: p.bounds}
	now, waiting := time.Now(), 0
	for l := range p.leases {
		switch {
		case l.runs:
			n.add(l, now)
		case l.session:
			n.children++
		default:
			waiting++
		}
	}
	if n.all.all.calls+waiting > p.bounds.Lane/2 || p.left > 0 {
		p.countLanes(n)
	}
	if p.left > 0 && (n.children+p.left >= p.bounds.Children || n.foreign.all.calls+p.left >= p.bounds.Foreign) {
		p.left = p.countLeft()
	}
	n.left = p.left
	return n
}

func (n *census) add(l *lease, now time.Time) {
	n.children++
	if l.hangs {
		n.hung++
	}
	n.all.add(l)
	if now.Sub(l.began) < n.bounds.Slow {
		n.quick.add(l)
	}
}

// countLanes counts what runs on which file system.
func (p *Pool) countLanes(n *census) {
	points, read := p.mounts.points()
	if len(points) == 0 {
		return
	}
	n.lanes, n.own, n.owners = map[Lane]*tallies{}, map[Lane]bool{}, map[ownerLane]int{}
	for _, path := range p.own {
		_, lane := points.of(path)
		n.own[lane] = true
	}
	for l := range p.leases {
		l.place(points, read)
		if l.runs {
			n.addLane(l)
		}
	}
}

func (n *census) addLane(l *lease) {
	if n.lanes[l.lane] == nil {
		n.lanes[l.lane] = &tallies{}
	}
	n.lanes[l.lane].add(l)
	if !n.own[l.lane] {
		n.foreign.add(l)
	}
	if l.Long {
		n.owners[ownerLane{l.owner, l.lane}]++
	}
}

// full returns the calls that leave no room for another one, or nil if there is room. A file system that hangs must not
// use up the children, however many of its paths are tried. Nor must calls that take long.
func (n *census) full(l *lease) *crowd {
	if n.quick.calls >= n.bounds.Quick {
		return &crowd{tally: n.quick}
	}
	if same := n.lanes[l.lane]; same != nil {
		if full := same.full(l.Long, n.bounds.Lane, "on the file system at "+l.point); full != nil {
			return full
		}
	}
	if len(n.own) > 0 && !n.own[l.lane] {
		// Children that an earlier process has left behind most likely hang on such file systems.
		most := max(n.bounds.Foreign-n.left, 1)
		full := n.foreign.full(l.Long, most, "on file systems that are not the node's own")
		if full != nil && !full.long {
			full.calls, full.hung = full.calls+n.left, full.hung+n.left
		}
		if full != nil {
			return full
		}
	}
	if l.Long && n.all.long.calls >= n.bounds.Children/2 {
		return &crowd{tally: n.all.long, where: "on all file systems", long: true}
	}
	return nil
}

// obstacle is why a call cannot run that needs a child, or nil.
func (n *census) obstacle(l *lease) *crowd {
	if full := n.full(l); full != nil {
		return full
	}
	if n.children+n.left >= n.bounds.Children {
		return &crowd{tally: tally{calls: n.bounds.Children, hung: n.hung + n.left}, children: true}
	}
	return nil
}

// before orders the calls that wait. Of those that take long, one of the namespace that has the fewest on a file system
// comes first: a hundred pods with millions of files delay no others.
func (n *census) before(a, b *lease) bool {
	return cmp.Or(cmp.Compare(n.running(a), n.running(b)), cmp.Compare(a.number, b.number)) < 0
}

func (n *census) running(l *lease) int { return n.owners[ownerLane{l.owner, l.lane}] }

// admit gives places to those that wait, in their order, as long as there is room. The lock is held.
func (p *Pool) admit() {
	for {
		n := p.count()
		var next *lease
		for l := range p.leases {
			if !l.runs && !l.session && (next == nil || n.before(l, next)) && n.obstacle(l) == nil {
				next = l
			}
		}
		if next == nil {
			return
		}
		next.begin()
		close(next.admitted)
	}
}

// await waits for a place beside the calls that run. A call that takes long waits for as long as those before it go on.
// If all of them hang, it waits no longer than another call.
func (p *Pool) await(ctx context.Context, l *lease) error {
	if l.Long {
		waits := time.AfterFunc(DefaultPatience, func() {
			p.log.Info("call on a volume waits for others that take long", logkey.Path, l.Path, "operation", l.Operation)
		})
		defer waits.Stop()
	}
	p.enter(l)
	for began := time.Now(); ; {
		others := p.look(l)
		if others == nil {
			return nil
		}
		if (l.Long || others.where == "" && !others.children) && others.moved.After(began) {
			began = others.moved
		}
		patience := l.Patience
		if others.hung >= others.calls {
			patience = min(patience, DefaultPatience)
		}
		switch patience -= time.Since(began); {
		case others.children && others.hung >= others.calls:
			return fmt.Errorf("%s %s: not tried: %s", l.Operation, l.Path, others)
		case patience <= 0:
			return notTried(l, others, errors.New("waited for them in vain"))
		}
		select {
		case <-l.admitted:
			return nil
		case <-time.After(min(patience, DefaultPatience)): // they may hang by now
		case <-ctx.Done():
			return notTried(l, others, context.Cause(ctx))
		}
	}
}

func notTried(l *lease, others *crowd, cause error) error {
	return l.fail("not tried: "+others.String(), cause)
}

// enter has the call wait for a place, and gives it one if there is room.
func (p *Pool) enter(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered++
	l.number = p.entered
	p.leases[l] = true
	p.admit()
}

// look returns what keeps the call from its place, or nil once it has one.
func (p *Pool) look(l *lease) *crowd {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !l.runs {
		p.admit()
	}
	if l.runs {
		return nil
	}
	return p.count().obstacle(l)
}

// Room reports whether a call of a Session may run on a path beside the others.
func (p *Pool) Room(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &lease{Call: Call{Path: path}}
	l.place(p.mounts.points())
	return p.count().full(l) == nil
}

// Spare is how many children have no slow call, those that may still be started included.
func (p *Pool) Spare() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.count()
	return n.bounds.Children - n.left - (n.all.all.calls - n.quick.calls)
}

// Lane returns the file system that a path is on.
func (p *Pool) Lane(path string) Lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	points, _ := p.mounts.points()
	_, lane := points.of(path)
	return lane
}
