package firewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// ownNetwork names the variable that is set for a test with a network namespace of its own.
const ownNetwork = "MICROLET_TEST_NETWORK"

// withOwnNetwork runs the test once more in a new network namespace, which ends with it.
func withOwnNetwork(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it makes network namespaces and writes iptables rules in them")
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Fatalf("needs iptables: %v", err)
	}
	if os.Getenv(ownNetwork) != "" {
		test(t)
		return
	}
	again := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), ownNetwork+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := again.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a network namespace of its own: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command runs one of the programs that administrators use.
func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// placeOnce puts the chains in place as a start of the agent does.
func placeOnce(t *testing.T) {
	t.Helper()
	f, err := New(Options{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	must(t, err)
	for _, family := range f.families {
		if _, err := family.ensure(t.Context(), f.opts.Open, nil); err != nil {
			t.Fatalf("%s: %v", family.name, err)
		}
	}
}

// rules are those of a table, as the kernel has them.
func rules(t *testing.T, program, table string) []string {
	t.Helper()
	return strings.Split(strings.TrimSpace(command(t, program, "-t", table, "-S")), "\n")
}

const drop = `-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`

func TestChainsAreTheKubelets(t *testing.T) {
	withOwnNetwork(t, func(t *testing.T) {
		// The agent must not change what another program has set.
		command(t, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
		for range 3 { // restarts
			placeOnce(t)
		}
		for _, test := range []struct {
			program, table string
			want           []string
		}{
			{"iptables", "filter", []string{
				"-P INPUT ACCEPT", "-P FORWARD ACCEPT", "-P OUTPUT ACCEPT", "-N KUBE-FIREWALL",
				"-N KUBE-KUBELET-CANARY",
				"-A INPUT -j KUBE-FIREWALL", "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
				"-A OUTPUT -j KUBE-FIREWALL", drop,
			}},
			{"iptables", "mangle", []string{
				"-P PREROUTING ACCEPT", "-P INPUT ACCEPT", "-P FORWARD ACCEPT", "-P OUTPUT ACCEPT",
				"-P POSTROUTING ACCEPT", "-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY",
			}},
			{"iptables", "nat", []string{"-P PREROUTING ACCEPT", "-P INPUT ACCEPT", "-P OUTPUT ACCEPT", "-P POSTROUTING ACCEPT",
				"-N KUBE-KUBELET-CANARY"}},
			{"ip6tables", "filter", []string{"-P INPUT ACCEPT", "-P FORWARD ACCEPT", "-P OUTPUT ACCEPT",
				"-N KUBE-KUBELET-CANARY"}},
			{"ip6tables", "mangle", []string{
				"-P PREROUTING ACCEPT", "-P INPUT ACCEPT", "-P FORWARD ACCEPT", "-P OUTPUT ACCEPT",
				"-P POSTROUTING ACCEPT", "-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY",
			}},
		} {
			got := rules(t, test.program, test.table)
			slices.Sort(got)
			slices.Sort(test.want)
			if !slices.Equal(got, test.want) {
				t.Errorf("%s -t %s:\n%s\nwant\n%s", test.program, test.table, strings.Join(got, "\n"),
					strings.Join(test.want, "\n"))
			}
		}
	})
}

// TestEarlierChainsStay: what a kubelet left, one of old included, is neither doubled nor changed.
func TestEarlierChainsStay(t *testing.T) {
	withOwnNetwork(t, func(t *testing.T) {
		for _, line := range []string{
			"-t mangle -N KUBE-IPTABLES-HINT", "-t mangle -N KUBE-KUBELET-CANARY", "-t nat -N KUBE-KUBELET-CANARY",
			"-t filter -N KUBE-KUBELET-CANARY",
			"-N KUBE-FIREWALL", "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP",
			"-A KUBE-FIREWALL -m comment --comment block\x00incoming\x00localnet\x00connections --dst 127.0.0.0/8 ! --src " +
				"127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
			"-A OUTPUT -p tcp --dport 9 -j ACCEPT", "-A OUTPUT -j KUBE-FIREWALL", "-A INPUT -j KUBE-FIREWALL",
		} {
			args := strings.Fields(line)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "\x00", " ")
			}
			command(t, append([]string{"iptables"}, args...)...)
		}
		var before, after []string
		for _, table := range []string{"filter", "mangle", "nat"} {
			before = append(before, rules(t, "iptables", table)...)
		}
		placeOnce(t)
		for _, table := range []string{"filter", "mangle", "nat"} {
			after = append(after, rules(t, "iptables", table)...)
		}
		if !slices.Equal(before, after) {
			t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	})
}

// TestFlushIsMended: an administrator flushes everything, or the table filter alone, while the agent runs.
func TestFlushIsMended(t *testing.T) {
	withOwnNetwork(t, func(t *testing.T) {
		f, err := New(Options{
			Period:  20 * time.Millisecond,
			Settle:  10 * time.Millisecond,
			Log:     slog.New(slog.DiscardHandler),
			Metrics: prometheus.NewRegistry(),
		})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		inPlace := func() bool {
			return slices.Contains(rules(t, "iptables", "filter"), drop) &&
				slices.Contains(rules(t, "iptables", "filter"), "-A INPUT -j KUBE-FIREWALL") &&
				slices.Contains(rules(t, "iptables", "mangle"), "-N KUBE-IPTABLES-HINT") &&
				slices.Contains(rules(t, "ip6tables", "mangle"), "-N KUBE-IPTABLES-HINT")
		}
		for _, flush := range [][]string{
			nil,
			{"iptables -F", "iptables -X"},
			{"iptables -t mangle -F", "iptables -t mangle -X", "iptables -F", "iptables -X", "iptables -t nat -X",
				"ip6tables -t mangle -X", "ip6tables -X"},
		} {
			for _, line := range flush {
				// At this period, chains are at times put back in the middle of a flush.
				_ = exec.Command("sh", "-c", line).Run()
			}
			proctest.Await(t, 30*time.Second, fmt.Sprintf("the chains are back after %v", flush), inPlace)
		}
		cancel()
		must(t, <-ended)
		if !inPlace() {
			t.Error("the chains ended with the agent")
		}
	})
}

const (
	nodeIP      = "10.255.1.1"
	neighbourIP = "10.255.1.2"
)

// neighbour is a network namespace beside the test's, with a link between them; send and dial are done there.
// As on a node with kube-proxy, what is sent to 127.0.0.0/8 is routed.
func neighbour(t *testing.T) (do func(f func() error) error) {
	t.Helper()
	jobs, ready := make(chan func(), 1), make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- -1
			return
		}
		ready <- unix.Gettid()
		for job := range jobs {
			job()
		}
	}()
	tid := <-ready
	if tid < 0 {
		t.Fatal("no network namespace for the neighbour")
	}
	t.Cleanup(func() { close(jobs) })
	do = func(f func() error) error {
		result := make(chan error, 1)
		jobs <- func() { result <- f() }
		return <-result
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "node"}, PeerName: "there"}))
	there, err := netlink.LinkByName("there")
	must(t, err)
	must(t, netlink.LinkSetNsPid(there, tid))
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	must(t, up("node", nodeIP))
	must(t, do(func() error {
		if err := up("there", neighbourIP); err != nil {
			return err
		}
		link, err := netlink.LinkByName("there")
		if err != nil {
			return err
		}
		// The neighbour has no loopback of its own in the way.
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index,
			Dst:       &net.IPNet{IP: net.IPv4(127, 0, 0, 0), Mask: net.CIDRMask(8, 32)},
			Gw:        net.ParseIP(nodeIP),
		})
	}))
	return do
}

func up(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link,
		&netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(24, 32)}}); err != nil {
		return err
	}
	// The settings are those of the network namespace of the thread that writes them.
	err = os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/route_localnet", []byte("1"), 0)
	return errors.Join(err, netlink.LinkSetUp(link))
}

// TestPacketsFromElsewhere: a neighbour reaches what listens on the node's loopback alone without the chain, and
// does not with it.
func TestPacketsFromElsewhere(t *testing.T) {
	withOwnNetwork(t, func(t *testing.T) {
		do := neighbour(t)
		loopback, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
		must(t, err)
		defer func() { _ = loopback.Close() }()
		port := loopback.LocalAddr().(*net.UDPAddr).Port
		// arrives reports whether packets from there get through. After each the node sends one itself: it shows that
		// the reader waits for nothing but the other. Those that a queue held since an earlier call do not count.
		call := 0
		arrives := func(to string) bool {
			t.Helper()
			call++
			elsewhere, buf := fmt.Sprintf("elsewhere %d", call), make([]byte, 32)
			for range 20 {
				must(t, do(func() error { return send(to, port, elsewhere) }))
				must(t, send("127.0.0.1", port, "node"))
				for got, deadline := "", time.Now().Add(30*time.Second); got != "node"; {
					must(t, loopback.SetReadDeadline(time.Now().Add(time.Second)))
					n, _, err := loopback.ReadFrom(buf)
					switch {
					case err == nil:
					case errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(deadline):
						must(t, send("127.0.0.1", port, "node")) // a kernel with full queues drops packets
						continue
					default:
						t.Fatalf("not even the node reaches its loopback: %v", err)
					}
					if got = string(buf[:n]); got == elsewhere {
						return true
					}
				}
			}
			return false
		}
		// The kernel brings a new link into service by a work queue of its own, some time after it was set up.
		comesToArrive := func(to, why string) {
			t.Helper()
			proctest.Await(t, 30*time.Second, why, func() bool { return arrives(to) })
		}
		comesToArrive("127.0.0.1", "packets get through without the chain")
		placeOnce(t)
		if arrives("127.0.0.1") {
			t.Error("a packet from elsewhere reaches 127.0.0.1")
		}
		// What a node port on loopback does: it is forwarded by NAT on purpose.
		command(t, "iptables", "-t", "nat", "-A", "PREROUTING", "-d", nodeIP, "-p", "udp", "-j", "DNAT",
			"--to-destination", fmt.Sprintf("127.0.0.1:%d", port))
		comesToArrive(nodeIP, "a connection that is forwarded to loopback gets through")
		tables, err := iptables.New()
		must(t, err)
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			must(t, tables.Delete("filter", chain, "-j", firewallChain))
		}
		comesToArrive("127.0.0.1", "packets get through again: nothing but the chain had dropped them")
	})
}

func send(to string, port int, text string) error {
	c, err := net.Dial("udp4", net.JoinHostPort(to, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(text))
	return errors.Join(err, c.Close())
}
