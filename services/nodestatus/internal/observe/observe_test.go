package observe

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	plegv1 "github.com/microlet/microlet/proto/microlet/pleg/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/nodeinfo"
	"github.com/microlet/microlet/services/internal/pressure"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
)

func noVolumes(context.Context) VolumeEntries { return VolumeEntries{} }

// fakePodsync works, hangs or is away, as seen by its heartbeat and by its socket.
type fakePodsync struct {
	mu     sync.Mutex
	turns  uint64 // of its dispatcher
	beats  bool   // heartbeats arrive
	hangs  bool   // its dispatcher stands still
	away   bool   // its socket refuses
	silent bool   // its socket does not answer
	asked  int
	last   time.Time
	beat   *busv1.Heartbeat
}

func (f *fakePodsync) set(change func(*fakePodsync)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// run counts a round of the dispatcher every second and puts a heartbeat every 5 s.
func (f *fakePodsync) run(ctx context.Context) {
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		f.set(func(f *fakePodsync) {
			if !f.hangs && !f.away && !f.silent {
				f.turns++
				f.last = time.Now()
			}
			if i%5 == 0 && f.beats && !f.away && !f.silent {
				f.beat = &busv1.Heartbeat{Pid: 1, Turns: f.turns}
			}
		})
	}
}

func (f *fakePodsync) heartbeat() *busv1.Heartbeat {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.beat
}

func (f *fakePodsync) GetHealth(ctx context.Context, _ *podsyncv1.GetHealthRequest,
	_ ...grpc.CallOption) (*podsyncv1.GetHealthResponse, error) {
	f.mu.Lock()
	f.asked++
	away, silent, turns, idle := f.away, f.silent, f.turns, time.Since(f.last)
	f.mu.Unlock()
	switch {
	case away:
		return nil, errors.New("connection refused")
	case silent:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &podsyncv1.GetHealthResponse{Turns: turns, IdleMilliseconds: idle.Milliseconds()}, nil
}

// inBubble runs test in virtual time, with a podsync that works and a judge that looks every 2 s.
func inBubble(t *testing.T, test func(t *testing.T, f *fakePodsync, p *Podsync)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakePodsync{beats: true, last: time.Now(), beat: &busv1.Heartbeat{Pid: 1}}
		p := NewPodsync(f.heartbeat, f)
		var wg sync.WaitGroup
		wg.Go(func() { f.run(ctx) })
		wg.Go(func() {
			for ctx.Err() == nil {
				p.Look(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
				}
			}
		})
		test(t, f, p)
		cancel()
		wg.Wait()
	})
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestHeartbeatIsProofEnough(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakePodsync, p *Podsync) {
		pass(time.Minute)
		f.set(func(f *fakePodsync) { f.asked = 0 })
		pass(10 * time.Minute)
		if err := p.Turns(); err != nil || !p.Seen() {
			t.Errorf("Turns: %v, seen: %v", err, p.Seen())
		}
		f.set(func(f *fakePodsync) {
			if f.asked != 0 {
				t.Errorf("podsync was asked %d times although its heartbeat had it all", f.asked)
			}
		})
	})
}

func TestSilentBusIsMadeUpForByAsking(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakePodsync, p *Podsync) {
		f.set(func(f *fakePodsync) { f.beats, f.beat = false, nil })
		pass(10 * time.Minute)
		if err := p.Turns(); err != nil {
			t.Errorf("Turns: %v", err)
		}
	})
}

func TestHangIsProvenAfterAMinuteAndNotBefore(t *testing.T) {
	for name, hang := range map[string]func(*fakePodsync){
		"dispatcher stands still, heartbeat goes on": func(f *fakePodsync) { f.hangs = true },
		"process is stopped":                         func(f *fakePodsync) { f.silent = true },
		"process is gone":                            func(f *fakePodsync) { f.away = true },
		"dispatcher stands still, bus away":          func(f *fakePodsync) { f.hangs, f.beats = true, false },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakePodsync, p *Podsync) {
				pass(time.Minute)
				f.set(hang)
				began := time.Now()
				for p.Turns() == nil {
					if time.Since(began) > 90*time.Second {
						t.Fatal("not proven within 90 s")
					}
					pass(100 * time.Millisecond)
				}
				// The last heartbeat may be 5 s older than the hang, and idleness counts after 10 s only.
				if took := time.Since(began); took < 54*time.Second || took > 76*time.Second {
					t.Errorf("proven after %v, want about a minute", took)
				}
				f.set(func(f *fakePodsync) { f.hangs, f.away, f.silent, f.beats = false, false, false, true })
				pass(8 * time.Second)
				if err := p.Turns(); err != nil {
					t.Errorf("8 s after the hang: %v", err)
				}
			})
		})
	}
}

func TestHangOf45SecondsIsForgiven(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakePodsync, p *Podsync) {
		for range 5 {
			f.set(func(f *fakePodsync) { f.silent = true })
			for range 45 {
				pass(time.Second)
				if err := p.Turns(); err != nil {
					t.Fatal(err)
				}
			}
			f.set(func(f *fakePodsync) { f.silent = false })
			pass(10 * time.Second)
		}
	})
}

func TestOwnSleepIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakePodsync{away: true}
		p := NewPodsync(f.heartbeat, f)
		p.Look(t.Context())
		pass(2 * time.Minute) // nothing was observed: this process was stopped
		p.Look(t.Context())
		if err := p.Turns(); err != nil {
			t.Errorf("after an own sleep: %v", err)
		}
	})
}

func TestOldHeartbeatIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakePodsync{away: true, beat: &busv1.Heartbeat{Pid: 7, Turns: 1000}} // of a podsync that is dead
		p := NewPodsync(f.heartbeat, f)
		for range 10 {
			p.Look(t.Context())
			pass(2 * time.Second)
		}
		if p.Seen() {
			t.Error("a dead podsync counts as seen")
		}
	})
}

var (
	good = &podsyncv1.Runtime{
		Name:         "containerd",
		RuntimeReady: &podsyncv1.Runtime_Condition{Status: true},
		NetworkReady: &podsyncv1.Runtime_Condition{Status: true},
	}
	noNetwork = &podsyncv1.Runtime{
		Name:         "containerd",
		RuntimeReady: &podsyncv1.Runtime_Condition{Status: true},
		NetworkReady: &podsyncv1.Runtime_Condition{
			Reason:  "NetworkPluginNotReady",
			Message: "cni plugin not initialized",
		},
	}
	notReady = &podsyncv1.Runtime{
		Name:         "containerd",
		RuntimeReady: &podsyncv1.Runtime_Condition{Reason: "Why", Message: "not"},
		NetworkReady: &podsyncv1.Runtime_Condition{Status: true},
	}
	failing    = &podsyncv1.Runtime{Error: "rpc error: deadline"}
	relisted   = &plegv1.Relist{Generation: 5}
	relistFail = &plegv1.Relist{Generation: 6, Error: "list sandboxes: deadline"}
)

func TestReady(t *testing.T) {
	type step struct {
		pass      time.Duration
		away      bool // the bus
		runtime   *podsyncv1.Runtime
		relist    *plegv1.Relist
		relistAge time.Duration
		want      []string // parts of the problems; none is ready
	}
	cases := []struct {
		name   string
		assume bool
		steps  []step
	}{
		{"start", false, []step{
			{want: []string{"status check may not have completed yet", "pleg has yet to be successful",
				"network state unknown"}},
			{runtime: good, want: []string{"pleg has yet to be successful"}},
			{runtime: good, relist: relisted},
		}},
		{"restart of a ready node before anything is known", true, []step{
			{away: true}, {pass: 29 * time.Second}, {runtime: good, relist: relisted},
			{pass: time.Hour, runtime: good, relist: relisted},
		}},
		{"restart of a ready node with services that never come", true, []step{
			{}, {pass: 30 * time.Second, want: []string{"container runtime is down"}},
			{pass: 150 * time.Second, want: []string{"container runtime is down",
				"PLEG is not healthy: pleg was last seen active 3m0s ago; threshold is 3m0s"}},
		}},
		{"bus away for an hour", false, []step{
			{runtime: good, relist: relisted}, {pass: time.Hour, away: true, runtime: good, relist: relisted},
			{runtime: good, relist: relisted, relistAge: time.Second},
		}},
		{"network not ready", false, []step{
			{runtime: good, relist: relisted},
			{runtime: noNetwork, relist: relisted, want: []string{"container runtime network not ready: NetworkReady=false " +
				"reason:NetworkPluginNotReady message:cni plugin not initialized"}},
			{runtime: good, relist: relisted},
		}},
		{"runtime not ready", false, []step{
			{
				runtime: notReady,
				relist:  relisted,
				want:    []string{"container runtime not ready: RuntimeReady=false reason:Why message:not"},
			},
		}},
		{"runtime restarts", false, []step{
			{runtime: good, relist: relisted}, {runtime: failing, relist: relistFail},
			{pass: 29 * time.Second, runtime: failing, relist: relistFail}, {runtime: good, relist: relisted},
		}},
		{"runtime down", false, []step{
			{runtime: good, relist: relisted}, {runtime: failing, relist: relistFail},
			{pass: 30 * time.Second, runtime: failing, relist: relistFail, want: []string{"container runtime is down"}},
			{pass: 3 * time.Minute, runtime: failing, relist: relistFail,
				want: []string{"container runtime is down", "pleg was last seen active"}},
			{runtime: good, relist: relisted},
		}},
		{"pleg dead", false, []step{
			{runtime: good, relist: relisted},
			{pass: 179 * time.Second, runtime: good, relist: relisted, relistAge: 179 * time.Second},
			{pass: time.Second, runtime: good, relist: relisted, relistAge: 180 * time.Second,
				want: []string{"pleg was last seen active 3m0s ago"}},
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakePodsync{last: time.Now(), turns: 1}
				p := NewPodsync(f.heartbeat, f)
				p.Look(t.Context()) // podsync works
				r := NewReady(p)
				if c.assume {
					r.Assume()
				}
				for i, s := range c.steps {
					observe := func(age time.Duration) {
						r.Observe(!s.away,
							Value[*podsyncv1.Runtime]{Message: s.runtime, Known: s.runtime != nil},
							Value[*plegv1.Relist]{Message: s.relist, Known: s.relist != nil, Age: age})
					}
					for end := time.Now().Add(s.pass); time.Now().Before(end); {
						pass(time.Second)
						observe(max(0, s.relistAge-time.Until(end)))
					}
					observe(s.relistAge)
					var got []string
					for _, err := range r.Problems() {
						got = append(got, err.Error())
					}
					if len(got) != len(s.want) {
						t.Fatalf("step %d: problems %q, want %q", i, got, s.want)
					}
					for j, part := range s.want {
						if !strings.Contains(got[j], part) {
							t.Errorf("step %d: problem %q, want %q in it", i, got[j], part)
						}
					}
				}
			})
		})
	}
}

func TestReadyNeedsPodsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakePodsync{away: true}
		p := NewPodsync(f.heartbeat, f)
		r := NewReady(p)
		look := func() string {
			p.Look(t.Context())
			r.Observe(true, Value[*podsyncv1.Runtime]{Message: good, Known: true},
				Value[*plegv1.Relist]{Message: relisted, Known: true})
			return errors.Join(r.Problems()...).Error()
		}
		if got := look(); !strings.Contains(got, "podsync has yet to be seen active") {
			t.Errorf("problems %q before podsync was seen", got)
		}
		r.Assume()
		var got error
		for range 31 {
			p.Look(t.Context())
			got = errors.Join(r.Problems()...)
			pass(2 * time.Second)
		}
		if got == nil ||
			!strings.Contains(got.Error(),
				"podsync is not healthy: podsync was last seen active 1m0s ago; threshold is 1m0s") {
			t.Errorf("problems %v after a minute without podsync", got)
		}
	})
}

func TestWarningTellsOfALongSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReady(NewPodsync(func() *busv1.Heartbeat { return nil }, &fakePodsync{}))
		none := func(connected bool) { r.Observe(connected, Value[*podsyncv1.Runtime]{}, Value[*plegv1.Relist]{}) }
		none(false)
		pass(10 * time.Second)
		none(false)
		if w := r.Warning(); w != "" {
			t.Errorf("warning %q after 10 s", w)
		}
		pass(30 * time.Second)
		none(false)
		if w := r.Warning(); !strings.Contains(w, "bus is away") {
			t.Errorf("warning %q after 40 s", w)
		}
		none(true)
		if w := r.Warning(); w != "" {
			t.Errorf("warning %q once the bus is back", w)
		}
	})
}

// fakeNetwork is a host with one address, or none.
type fakeNetwork struct{ err error }

func (fakeNetwork) Interfaces() ([]netip.Addr, error) { return nil, nil }
func (fakeNetwork) Lookup(context.Context, string) ([]netip.Addr, error) {
	return nil, errors.New("no such host")
}
func (f fakeNetwork) DefaultRoute(netip.Addr) (netip.Addr, error) {
	return netip.MustParseAddr("10.0.0.1"), f.err
}

// slowNames is a host of two addresses, of which a slow name server knows one.
type slowNames struct{ takes time.Duration }

func (slowNames) Interfaces() ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.0.1")}, nil
}

func (s *slowNames) Lookup(ctx context.Context, _ string) ([]netip.Addr, error) {
	select {
	case <-time.After(s.takes):
		return []netip.Addr{netip.MustParseAddr("192.168.0.1")}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (slowNames) DefaultRoute(netip.Addr) (netip.Addr, error) {
	return netip.MustParseAddr("10.0.0.1"), nil
}

// A name server that is away changes no address that was found. At the start there is time for a second one, and then
// the default route has to do.
func TestASlowNameServerChangesNoAddress(t *testing.T) {
	for first, want := range map[time.Duration]string{
		0: "192.168.0.1", 6 * time.Second: "192.168.0.1", time.Hour: "10.0.0.1",
	} {
		inBubble(t, func(t *testing.T, _ *fakePodsync, p *Podsync) {
			network := &slowNames{takes: first}
			c := &Collector{
				Settings: node.Settings{Name: "n", Hostname: "n"}, Network: network,
				Limits: nodeinfo.Options{RootDir: "/", MaxPods: 7}, Volumes: noVolumes,
				Capacity: func() *podsyncv1.Capacity { return nil }, Runtime: func() *podsyncv1.Runtime { return good },
				Images:   func() *imagegcv1.Images { return nil },
				Extended: func() *resourcesv1.NodeResources { return nil },
				Pressure: func() []pressure.State { return nil }, Ready: NewReady(p), Found: func([]v1.NodeAddress) {},
				Log: slog.New(slog.DiscardHandler),
			}
			for _, takes := range []time.Duration{first, 5 * time.Second} {
				network.takes = takes
				if found := c.Observe(t.Context(), true).Addresses; found[0].Address != want {
					t.Errorf("with a name server that takes %s: %v, want %s", takes, found, want)
				}
			}
		})
	}
}

func TestCollectorPrefersPodsyncAndHoldsWhatItFound(t *testing.T) {
	var reported *podsyncv1.Capacity
	network := &struct{ fakeNetwork }{}
	c := &Collector{
		Volumes:  noVolumes,
		Settings: node.Settings{Name: "n", Hostname: "n"}, Network: network,
		Limits:   nodeinfo.Options{RootDir: "/", MaxPods: 7, LocalStorageCapacityIsolation: true},
		Capacity: func() *podsyncv1.Capacity { return reported }, Runtime: func() *podsyncv1.Runtime { return good },
		Images:   func() *imagegcv1.Images { return nil },
		Extended: func() *resourcesv1.NodeResources { return nil },
		Pressure: func() []pressure.State { return []pressure.State{{Type: v1.NodePIDPressure}} },
		Ready:    NewReady(NewPodsync(func() *busv1.Heartbeat { return nil }, &fakePodsync{})),
		Found:    func([]v1.NodeAddress) {}, Log: slog.New(slog.DiscardHandler),
	}
	o := c.Observe(t.Context(), true)
	if q := o.Capacity[v1.ResourcePods]; q.Value() != 7 {
		t.Errorf("pods = %s, want this machine's own figures while podsync reports none", q.String())
	}
	if len(o.Pressure) != 1 {
		t.Errorf("pressure %v, want evictor's", o.Pressure)
	}
	if len(o.Addresses) != 2 || o.Addresses[0].Address != "10.0.0.1" || o.Machine.BootID == "" {
		t.Errorf("addresses %v, machine %+v", o.Addresses, o.Machine)
	}
	network.err = errors.New("no route")
	reported = &podsyncv1.Capacity{Capacity: map[string]string{"pods": "9"}, SystemUuid: "U"}
	o = c.Observe(t.Context(), true)
	if q := o.Capacity[v1.ResourcePods]; q.Value() != 9 || o.Machine.SystemUUID != "U" {
		t.Errorf("pods = %s, uuid = %q, want podsync's", q.String(), o.Machine.SystemUUID)
	}
	if len(o.Addresses) != 2 {
		t.Errorf("addresses %v, want the last ones held", o.Addresses)
	}
	reported = &podsyncv1.Capacity{Capacity: map[string]string{"pods": "many"}}
	if q := c.Observe(t.Context(), false).Capacity[v1.ResourcePods]; q.Value() != 7 {
		t.Errorf("pods = %s, want own figures when podsync's cannot be read", q.String())
	}
}
