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

// crowd are calls that run in one place, and how many may. Those that take long count apart: half as many may run.
type crowd struct {
	where     string
	most      int
	all, long tally
}

func (c *crowd) add(l *lease) {
	c.all.add(l)
	if l.Long {
		c.long.add(l)
	}
}

// obstacle are calls that leave no room for another one.
type obstacle struct {
	tally
	// where says where they run. long is set if only calls that take long count.
	where string
	long  bool
}

const (
	quick      = ""
	everywhere = "on all file systems"
)

// full returns the calls that leave no room for another one, or nil.
func (c *crowd) full(long bool) *obstacle {
	switch {
	case c.all.calls >= c.most:
		return &obstacle{c.all, c.where, false}
	case long && c.long.calls >= max(c.most/2, 1):
		return &obstacle{c.long, c.where, true}
	}
	return nil
}

// noChild says that they have all children.
func (o *obstacle) noChild() bool { return o.where == everywhere && !o.long }

func (o *obstacle) String() string {
	calls := fmt.Sprintf("%d other calls", o.calls)
	switch {
	case o.noChild():
		return fmt.Sprintf("all %d processes for calls on volumes are in use, and %d of them hang", o.calls, o.hung)
	case o.long:
		calls += " that take long " + o.where
	case o.where != quick:
		calls += " " + o.where
	}
	switch o.hung {
	case 0:
		return calls + " are under way"
	case o.calls:
		return calls + " do not answer"
	}
	return fmt.Sprintf("%s are under way, and %d of them do not answer", calls, o.hung)
}

// census counts what has a child at one moment.
type census struct {
	quick, foreign, all crowd
	// lanes, own and owners are empty if there are so few calls that no lane can be full.
	lanes  map[Lane]*crowd
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
	n := &census{
		quick: crowd{where: quick, most: p.bounds.Quick}, all: crowd{where: everywhere, most: p.bounds.Children},
		foreign: crowd{where: "on file systems that are not the node's own"},
	}
	now := time.Now()
	for l := range p.leases {
		n.all.add(l)
		if l.runs && now.Sub(l.began) < p.bounds.Slow {
			n.quick.all.add(l)
		}
	}
	if n.all.all.calls+len(p.waiting) > p.bounds.Lane/2 || p.left > 0 {
		p.countLanes(n)
	}
	if p.left > 0 && (n.all.all.calls+p.left >= p.bounds.Children || n.foreign.all.calls+p.left >= p.bounds.Foreign) {
		p.left = p.countLeft()
	}
	// What an earlier process has left behind most likely hangs on a foreign file system.
	n.foreign.most = max(p.bounds.Foreign, p.left+1)
	for _, c := range []*crowd{&n.foreign, &n.all} {
		c.all.calls, c.all.hung = c.all.calls+p.left, c.all.hung+p.left
	}
	return n
}

// countLanes counts what runs on which file system.
func (p *Pool) countLanes(n *census) {
	points, read := p.mounts.points()
	if len(points) == 0 {
		return
	}
	n.lanes, n.own, n.owners = map[Lane]*crowd{}, map[Lane]bool{}, map[ownerLane]int{}
	for _, path := range p.own {
		_, lane := points.of(path)
		n.own[lane] = true
	}
	for l := range p.waiting {
		l.place(points, read)
	}
	for l := range p.leases {
		l.place(points, read)
		if !l.runs {
			continue
		}
		if n.lanes[l.lane] == nil {
			n.lanes[l.lane] = &crowd{where: "on the file system at " + l.point, most: p.bounds.Lane}
		}
		n.lanes[l.lane].add(l)
		if len(n.own) > 0 && !n.own[l.lane] {
			n.foreign.add(l)
		}
		if l.Long {
			n.owners[ownerLane{l.owner, l.lane}]++
		}
	}
}

// full returns the calls that leave no room for another one, or nil if there is room. A file system that hangs must not
// use up the children, however many of its paths are tried. Nor must calls that take long.
func (n *census) full(l *lease) *obstacle {
	if full := n.quick.full(false); full != nil {
		return full
	}
	if same := n.lanes[l.lane]; same != nil {
		if full := same.full(l.Long); full != nil {
			return full
		}
	}
	if len(n.own) > 0 && !n.own[l.lane] {
		if full := n.foreign.full(l.Long); full != nil {
			return full
		}
	}
	if l.session { // it has a child
		return nil
	}
	return n.all.full(l.Long)
}

// before orders the calls that wait. Of those that take long, one of the namespace that has the fewest on a file system
// comes first: a hundred pods with millions of files delay no others.
func (n *census) before(a, b *lease) bool {
	return cmp.Or(cmp.Compare(n.running(a), n.running(b)), cmp.Compare(a.number, b.number)) < 0
}

func (n *census) running(l *lease) int {
	if !l.Long {
		return 0
	}
	return n.owners[ownerLane{l.owner, l.lane}]
}

// admit gives places to those that wait, in their order, as long as there is room. The lock is held.
func (p *Pool) admit() {
	for len(p.waiting) > 0 {
		n := p.count()
		var next *lease
		for l := range p.waiting {
			if (next == nil || n.before(l, next)) && n.full(l) == nil {
				next = l
			}
		}
		if next == nil {
			return
		}
		delete(p.waiting, next)
		p.leases[next] = true
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
		if (l.Long || others.where == quick) && others.moved.After(began) {
			began = others.moved
		}
		patience := l.Patience
		if others.hung >= others.calls {
			patience = min(patience, DefaultPatience)
		}
		switch patience -= time.Since(began); {
		case others.noChild() && others.hung >= others.calls:
			return fmt.Errorf("%s %s: not tried: %s", l.Operation, l.Path, others)
		case patience <= 0:
			return l.fail("not tried: "+others.String(), errors.New("waited for them in vain"))
		}
		select {
		case <-l.admitted:
			return nil
		case <-time.After(min(patience, DefaultPatience)): // they may hang by now
		case <-ctx.Done():
			return l.fail("not tried: "+others.String(), context.Cause(ctx))
		}
	}
}

// enter has the call wait for a place, and gives it one if there is room.
func (p *Pool) enter(l *lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered++
	l.number = p.entered
	p.waiting[l] = true
	p.admit()
}

// look returns what keeps the call from its place, or nil once it has one.
func (p *Pool) look(l *lease) *obstacle {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.admit()
	if l.runs {
		return nil
	}
	return p.count().full(l)
}

// Room reports whether a call of a Session may run on a path beside the others.
func (p *Pool) Room(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &lease{Call: Call{Path: path}, session: true}
	l.place(p.mounts.points())
	return p.count().full(l) == nil
}

// Spare is how many children have no slow call, those that may still be started included.
func (p *Pool) Spare() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, spare := time.Now(), p.bounds.Children-p.left
	for l := range p.leases {
		if l.runs && now.Sub(l.began) >= p.bounds.Slow {
			spare--
		}
	}
	return spare
}

// Lane returns the file system that a path is on.
func (p *Pool) Lane(path string) Lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	points, _ := p.mounts.points()
	_, lane := points.of(path)
	return lane
}
