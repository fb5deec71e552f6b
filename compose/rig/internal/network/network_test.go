package network

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestPlansDoNotOverlap(t *testing.T) {
	var all []netip.Prefix
	for i := range MaxIndex + 1 {
		plan, err := For(i)
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.Bridge) > unix.IFNAMSIZ-1 {
			t.Errorf("bridge name %q is too long", plan.Bridge)
		}
		remote := plan.OnMachine()
		if len(remote.Tap) > unix.IFNAMSIZ-1 || remote.Tap == plan.Bridge {
			t.Errorf("tap device name %q", remote.Tap)
		}
		if remote.NodeIP == remote.Server.Addr() || !remote.Server.Contains(remote.NodeIP) ||
			remote.Gateway != plan.Gateway || remote.PodCIDR != plan.PodCIDR {
			t.Errorf("plan of a node on its own machine: %+v", remote)
		}
		for _, p := range []netip.Prefix{plan.PodCIDR, plan.Services, remote.Server.Masked()} {
			if p != p.Masked() {
				t.Errorf("%v has host bits", p)
			}
			for _, other := range all {
				if p.Overlaps(other) {
					t.Errorf("%v overlaps %v", p, other)
				}
			}
			all = append(all, p)
		}
		if !plan.PodCIDR.Contains(plan.NodeIP) || plan.Gateway != plan.NodeIP ||
			plan.Server != netip.PrefixFrom(plan.NodeIP, plan.PodCIDR.Bits()) || plan.Tap != "" ||
			!plan.Services.Contains(plan.APIService) || !plan.Services.Contains(plan.DNSService) {
			t.Errorf("an address of %+v is outside its network", plan)
		}
	}
	if _, err := For(MaxIndex + 1); err == nil {
		t.Error("an index above the highest was accepted")
	}
}

func TestChoose(t *testing.T) {
	plan, err := choose(map[int]bool{0: true},
		[]netip.Prefix{netip.MustParsePrefix("10.210.5.0/24"), netip.MustParsePrefix("10.211.2.7/32"),
			netip.MustParsePrefix("10.212.3.0/28")})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Index != 4 {
		t.Errorf("index %d, want 4: 0 is taken, routes touch 1 to 3", plan.Index)
	}
	if _, err := choose(nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("a plan was found although a route covers all networks")
	}
}

func TestPortsSkipThoseInUse(t *testing.T) {
	got, err := ports(2, 2, func(port int) error {
		if port == 20100 {
			return &net.OpError{Op: "listen", Err: unix.EADDRINUSE}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{20101, 20102}, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if _, err := ports(0, 1, func(int) error { return unix.EADDRINUSE }); err == nil ||
		!strings.Contains(err.Error(), "only 0 of 1") {
		t.Errorf("error %v, want one that counts the free ports", err)
	}
	if _, err := ports(0, 1, func(int) error { return unix.EACCES }); !errors.Is(err, unix.EACCES) {
		t.Errorf("error %v, want EACCES", err)
	}
}

func TestPortsOnThisMachine(t *testing.T) {
	got, err := Ports(MaxIndex, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(got[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	again, err := Ports(MaxIndex, 1)
	if err != nil {
		t.Fatal(err)
	}
	if again[0] == got[0] {
		t.Errorf("port %d was picked while a process listens on it", got[0])
	}
}

func TestSplitRule(t *testing.T) {
	got := splitRule(`-A CNI-HOSTPORT-DNAT -m comment --comment "dnat name: \"mlrig1\" id: \"abc\"" -j CNI-DN-1`)
	want := []string{"-A", "CNI-HOSTPORT-DNAT", "-m", "comment", "--comment", `dnat name: "mlrig1" id: "abc"`, "-j",
		"CNI-DN-1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}

func FuzzSplitRule(f *testing.F) {
	f.Add(`-A X --comment "a \"b\" c" -j Y`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, word := range splitRule(line) {
			if len(word) > len(line) {
				t.Errorf("word %q is longer than its line", word)
			}
		}
	})
}

// fakeFilter is iptables in memory: chains hold rules as lists of words.
type fakeFilter map[string][][]string

func (f fakeFilter) key(table, chain string) string { return table + "/" + chain }

func (f fakeFilter) Exists(table, chain string, spec ...string) (bool, error) {
	return slices.ContainsFunc(f[f.key(table, chain)], func(r []string) bool { return slices.Equal(r, spec) }), nil
}

func (f fakeFilter) Insert(table, chain string, _ int, spec ...string) error {
	f[f.key(table, chain)] = append([][]string{spec}, f[f.key(table, chain)]...)
	return nil
}

func (f fakeFilter) Delete(table, chain string, spec ...string) error {
	rules := f[f.key(table, chain)]
	i := slices.IndexFunc(rules, func(r []string) bool { return slices.Equal(r, spec) })
	if i < 0 {
		return errors.New("no such rule")
	}
	f[f.key(table, chain)] = slices.Delete(rules, i, i+1)
	return nil
}

func (f fakeFilter) List(table, chain string) ([]string, error) {
	lines := []string{"-N " + chain}
	for _, r := range f[f.key(table, chain)] {
		words := []string{"-A", chain}
		for _, w := range r {
			if strings.ContainsAny(w, ` "`) {
				w = strconv.Quote(w)
			}
			words = append(words, w)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines, nil
}

func (f fakeFilter) ListChains(table string) ([]string, error) {
	var chains []string
	for key := range f {
		if t, chain, _ := strings.Cut(key, "/"); t == table {
			chains = append(chains, chain)
		}
	}
	return chains, nil
}

func (f fakeFilter) ClearAndDeleteChain(table, chain string) error {
	delete(f, f.key(table, chain))
	return nil
}

func newFakeFilter() fakeFilter {
	return fakeFilter{
		"filter/FORWARD":  nil,
		"filter/INPUT":    nil,
		"nat/PREROUTING":  nil,
		"nat/OUTPUT":      nil,
		"nat/POSTROUTING": nil,
		"mangle/OUTPUT":   nil,
	}
}

func TestRulesOfOneInstanceOnly(t *testing.T) {
	filter := newFakeFilter()
	stranger := []string{"-i", "docker0", "-j", "ACCEPT"}
	filter["filter/FORWARD"] = [][]string{stranger}
	planA, _ := For(1)
	planB, _ := For(10)
	for name, plan := range map[string]Plan{"a": planA, "ab": planB} {
		for range 2 { // a second time changes nothing
			if err := addRulesTo(filter, plan, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := len(filter["filter/FORWARD"]), 5; got != want {
		t.Fatalf("%d rules in FORWARD, want %d", got, want)
	}
	// A pod with a host port in each.
	for plan, pod := range map[Plan]string{planA: "CNI-DN-a", planB: "CNI-DN-b"} {
		text := `dnat name: "` + plan.Bridge + `" id: "0123"`
		filter["nat/"+hostportDNAT] = append(filter["nat/"+hostportDNAT],
			[]string{"-m", "comment", "--comment", text, "-j", pod})
		filter["nat/"+pod] = [][]string{{"-j", "DNAT"}}
	}
	filter["nat/PREROUTING"] = append(filter["nat/PREROUTING"], []string{"-m", "addrtype", "-j", hostportDNAT})

	if err := removeRules(filter, planA, "a"); err != nil {
		t.Fatal(err)
	}
	if found, chains, err := findRules(filter, planA, "a"); err != nil || len(found)+len(chains) > 0 {
		t.Errorf("left of a: %v %v, %v", found, chains, err)
	}
	if found, chains, err := findRules(filter, planB, "ab"); err != nil || len(found) != 7 || len(chains) != 1 {
		t.Errorf("of ab there are %d rules and chains %v, %v: want 7 rules and 1 chain", len(found), chains, err)
	}
	if err := removeSharedChains(filter, nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := filter["nat/"+hostportDNAT]; !ok {
		t.Error("the shared chain went although a pod of the other instance uses it")
	}
	if err := removeRules(filter, planB, "ab"); err != nil {
		t.Fatal(err)
	}
	if err := removeSharedChains(filter, nil); err != nil {
		t.Fatal(err)
	}
	want := newFakeFilter()
	want["filter/FORWARD"] = [][]string{stranger}
	for key, rules := range filter {
		if len(rules) != len(want[key]) {
			t.Errorf("%s holds %v at the end, want %v", key, rules, want[key])
		}
	}
}

func TestSharedChainsOfTheMachineStay(t *testing.T) {
	filter := newFakeFilter()
	filter["filter/INPUT"] = [][]string{{"-j", "KUBE-FIREWALL"}}
	filter["filter/KUBE-FIREWALL"] = nil
	filter["mangle/KUBE-IPTABLES-HINT"] = nil
	if err := removeSharedChains(filter, []Chain{{"filter", "KUBE-FIREWALL"}}); err != nil {
		t.Fatal(err)
	}
	if len(filter["filter/INPUT"]) != 1 {
		t.Error("the jump to a chain to keep went")
	}
	if _, ok := filter["mangle/KUBE-IPTABLES-HINT"]; ok {
		t.Error("a chain that the rig's agent made stayed")
	}
	if err := removeSharedChains(filter, nil); err != nil {
		t.Fatal(err)
	}
	if len(filter["filter/INPUT"]) != 0 {
		t.Error("the jump to a chain that went stayed")
	}
}

func TestCNIResults(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mlrig1-abc-eth0":  `{"networkName":"mlrig1"}`,
		"mlrig1-cut-eth0":  `{"netw`,
		"mlrig1-x-eth0":    `{"networkName":"mlrig1-x"}`,
		"mlrig10-abc-eth0": `{"networkName":"mlrig10"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := cniResults(dir, "mlrig1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(dir, "mlrig1-abc-eth0"), filepath.Join(dir, "mlrig1-cut-eth0")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}
