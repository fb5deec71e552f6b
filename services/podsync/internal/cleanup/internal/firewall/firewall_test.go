package firewall

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// memory is a packet filter that is not the kernel's.
type memory struct {
	sync.Mutex
	rules map[string][]string // by table and chain
	err   error
}

// change changes it as another program on the node does.
func (m *memory) change(f func()) {
	m.Lock()
	defer m.Unlock()
	f()
}

func newMemory() *memory {
	return &memory{rules: map[string][]string{"filter INPUT": nil, "filter OUTPUT": nil}}
}

func (m *memory) ChainExists(table, chain string) (bool, error) {
	m.Lock()
	defer m.Unlock()
	_, ok := m.rules[table+" "+chain]
	return ok, m.err
}

func (m *memory) NewChain(table, chain string) error {
	m.Lock()
	defer m.Unlock()
	m.rules[table+" "+chain] = nil
	return m.err
}

func (m *memory) Exists(table, chain string, rule ...string) (bool, error) {
	m.Lock()
	defer m.Unlock()
	return slices.Contains(m.rules[table+" "+chain], strings.Join(rule, " ")), m.err
}

func (m *memory) Insert(table, chain string, at int, rule ...string) error {
	m.Lock()
	defer m.Unlock()
	m.rules[table+" "+chain] = slices.Insert(m.rules[table+" "+chain], at-1, strings.Join(rule, " "))
	return m.err
}

func (m *memory) Append(table, chain string, rule ...string) error {
	m.Lock()
	defer m.Unlock()
	m.rules[table+" "+chain] = append(m.rules[table+" "+chain], strings.Join(rule, " "))
	return m.err
}

// watched runs a Firewall in virtual time for as long as the test does.
func watched(t *testing.T, open func(iptables.Protocol) (Tables, error)) (*Firewall, *proctest.Buffer) {
	t.Helper()
	log := &proctest.Buffer{}
	f, err := New(Options{Open: open, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return f, log
}

func TestMissingProgramsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var installed atomic.Bool
		v6 := newMemory()
		f, log := watched(t, func(p iptables.Protocol) (Tables, error) {
			if p == iptables.ProtocolIPv6 {
				return v6, nil
			}
			if !installed.Load() {
				return nil, errors.New(`exec: "iptables": executable file not found in $PATH`)
			}
			return newMemory(), nil
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("warned %d times:\n%s", n, log)
		}
		for _, want := range []string{"CVE-2020-8558", "makeIPTablesUtilChains", "executable file not found",
			"family=IPv4"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is not reported:\n%s", want, log)
			}
		}
		if _, ok := v6.rules["mangle "+hintChain]; !ok {
			t.Error("IPv6 went without its chains because IPv4 has no program")
		}
		if got := testutil.ToFloat64(f.failures.WithLabelValues("IPv4")); got != 11 {
			t.Errorf("%v failures were counted", got)
		}
		installed.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !strings.Contains(log.String(), `level=INFO msg="iptables chains in place" family=IPv4`) {
			t.Errorf("it is not reported that it works:\n%s", log)
		}
	})
}

// TestFlushedChainsComeBack: one table's, as a firewall's reload has it, or all.
func TestFlushedChainsComeBack(t *testing.T) {
	for name, flush := range map[string]func(m *memory){
		"all":             func(m *memory) { m.rules = newMemory().rules },
		"jumps":           func(m *memory) { m.rules["filter INPUT"] = nil },
		"rule":            func(m *memory) { m.rules["filter "+firewallChain] = nil },
		"chain":           func(m *memory) { delete(m.rules, "filter "+firewallChain) },
		"mangle's canary": func(m *memory) { delete(m.rules, "mangle "+canaryChain) },
		"hint":            func(m *memory) { delete(m.rules, "mangle "+hintChain) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v4, v6 := newMemory(), newMemory()
				f, log := watched(t, func(p iptables.Protocol) (Tables, error) {
					if p == iptables.ProtocolIPv6 {
						return v6, nil
					}
					return v4, nil
				})
				complete := func() bool {
					v4.Lock()
					defer v4.Unlock()
					return slices.Equal(v4.rules["filter INPUT"], []string{"-j KUBE-FIREWALL"}) &&
						slices.Equal(v4.rules["filter OUTPUT"], []string{"-j KUBE-FIREWALL"}) &&
						len(v4.rules["filter "+firewallChain]) == 1 && len(v4.rules) == 2+5
				}
				if !complete() {
					t.Fatalf("at the start: %v", v4.rules)
				}
				time.Sleep(defaultPeriod / 2)
				v4.change(func() { flush(v4) })
				time.Sleep(defaultPeriod/2 + defaultSettle - time.Second)
				synctest.Wait()
				if complete() {
					t.Error("put back in the middle of the flush")
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if !complete() {
					t.Errorf("not put back: %v", v4.rules)
				}
				if got := testutil.ToFloat64(f.restored.WithLabelValues("IPv4")); got != 1 ||
					strings.Count(log.String(), "level=WARN") != 1 {
					t.Errorf("counted %v:\n%s", got, log)
				}
				if len(v6.rules) != 2+4 || len(v6.rules["filter INPUT"]) != 0 {
					t.Errorf("IPv6 needs the hint and the canaries alone: %v", v6.rules)
				}
			})
		})
	}
}

func TestALookThatFailsChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f, log := watched(t, func(iptables.Protocol) (Tables, error) { return m, nil })
		m.change(func() { m.err = errors.New("the lock is held") })
		before := len(m.rules)
		time.Sleep(3 * defaultPeriod)
		synctest.Wait()
		m.change(func() { m.err = nil })
		time.Sleep(defaultPeriod)
		synctest.Wait()
		if len(m.rules) != before || testutil.ToFloat64(f.restored.WithLabelValues("IPv4")) != 0 {
			t.Errorf("a look that failed was taken for a flush:\n%s", log)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 2 { // one a family
			t.Errorf("warned %d times:\n%s", n, log)
		}
	})
}
