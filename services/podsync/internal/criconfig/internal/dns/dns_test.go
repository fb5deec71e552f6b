package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPodDNS(t *testing.T) {
	conf := file(t, "# by hand\nnameserver 10.1.1.1\nnameserver 10.1.1.2\nsearch old\nsearch corp.example. .\noptions "+
		"ndots:2 timeout:1\noptions timeout:3\n")
	cluster := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	for text, c := range map[string]struct {
		o        Options
		policy   v1.DNSPolicy
		hostNet  bool
		add      *v1.PodDNSConfig
		want     *runtimeapi.DNSConfig
		warnings []string
	}{
		"cluster first": {
			o:      Options{ResolvConf: conf, ClusterDNS: cluster, ClusterDomain: "cluster.local"},
			policy: v1.DNSClusterFirst,
			want: &runtimeapi.DNSConfig{
				Servers:  []string{"10.96.0.10"},
				Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"},
				Options:  []string{"ndots:5"},
			},
		},
		"cluster first on the host's network": {
			o:       Options{ResolvConf: conf, ClusterDNS: cluster, ClusterDomain: "cluster.local"},
			policy:  v1.DNSClusterFirst,
			hostNet: true,
			want: &runtimeapi.DNSConfig{
				Servers:  []string{"10.1.1.1", "10.1.1.2"},
				Searches: []string{"corp.example"},
				Options:  []string{"ndots:2", "timeout:3"},
			},
		},
		"cluster first with host net": {
			o: Options{ResolvConf: conf, ClusterDNS: cluster}, policy: v1.DNSClusterFirstWithHostNet, hostNet: true,
			want: &runtimeapi.DNSConfig{
				Servers:  []string{"10.96.0.10"},
				Searches: []string{"corp.example"},
				Options:  []string{"ndots:5"},
			},
		},
		"no cluster DNS": {
			o: Options{ResolvConf: conf}, policy: v1.DNSClusterFirst,
			want: &runtimeapi.DNSConfig{
				Servers:  []string{"10.1.1.1", "10.1.1.2"},
				Searches: []string{"corp.example"},
				Options:  []string{"ndots:2", "timeout:3"},
			},
			warnings: []string{"node MissingClusterDNS", "p MissingClusterDNS"},
		},
		"none": {
			o: Options{ResolvConf: conf, ClusterDNS: cluster}, policy: v1.DNSNone,
			add: &v1.PodDNSConfig{
				Nameservers: []string{"1.1.1.1", "1.1.1.1"},
				Searches:    []string{"a"},
				Options:     []v1.PodDNSConfigOption{{Name: "edns0"}, {Name: "ndots", Value: ptr.To("1")}},
			},
			want: &runtimeapi.DNSConfig{
				Servers:  []string{"1.1.1.1"},
				Searches: []string{"a"},
				Options:  []string{"edns0", "ndots:1"},
			},
		},
		"default with more": {
			o: Options{ResolvConf: conf}, policy: v1.DNSDefault,
			add: &v1.PodDNSConfig{
				Nameservers: []string{"1.1.1.1", "2.2.2.2"},
				Options:     []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("9")}},
			},
			want: &runtimeapi.DNSConfig{
				Servers:  []string{"10.1.1.1", "10.1.1.2", "1.1.1.1"},
				Searches: []string{"corp.example"},
				Options:  []string{"ndots:9", "timeout:3"},
			},
			warnings: []string{"p DNSConfigForming"},
		},
		"an option without a value, merged": {
			o: Options{ResolvConf: file(t, "options timeout: attempts:2\n")}, policy: v1.DNSDefault,
			add: &v1.PodDNSConfig{},
			want: &runtimeapi.DNSConfig{
				Servers: []string{}, Searches: []string{}, Options: []string{"timeout", "attempts:2"},
			},
		},
		"no resolv.conf": {
			o:      Options{NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}},
			policy: v1.DNSDefault,
			want:   &runtimeapi.DNSConfig{Servers: []string{"127.0.0.1", "::1"}, Searches: []string{"."}},
		},
		"no resolv.conf, no address": {
			policy: v1.DNSDefault,
			want:   &runtimeapi.DNSConfig{Servers: []string{"127.0.0.1"}, Searches: []string{"."}},
		},
	} {
		t.Run(text, func(t *testing.T) {
			var warnings []string
			c.o.Warn = func(p *v1.Pod, reason, _ string) { warnings = append(warnings, p.Name+" "+reason) }
			c.o.WarnNode = func(reason, _ string) { warnings = append(warnings, "node "+reason) }
			p := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"},
				Spec:       v1.PodSpec{DNSPolicy: c.policy, HostNetwork: c.hostNet, DNSConfig: c.add},
			}
			got, err := New(c.o).PodDNS(p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.warnings, warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSearchLimits(t *testing.T) {
	long := strings.Repeat("a", 254)
	many := make([]string, 40)
	for i := range many {
		many[i] = "d" + strings.Repeat("x", i)
	}
	c := New(Options{})
	p := &v1.Pod{}
	if got := c.fitSearches(p, many); len(got) != 32 {
		t.Errorf("%d of 40 domains kept, want 32", len(got))
	}
	if got := c.fitSearches(p, []string{"a", long, "b"}); len(got) != 2 {
		t.Errorf("kept %d", len(got))
	}
	wide := make([]string, 20)
	for i := range wide {
		wide[i] = strings.Repeat("b", 200)
	}
	if got := strings.Join(c.fitSearches(p, wide), " "); len(got) != 10*201-1 {
		t.Errorf("the search line has %d characters", len(got))
	}
}

func TestCheck(t *testing.T) {
	if err := New(Options{ResolvConf: file(t, "search a b c\n"), ClusterDomain: "c"}).Check(); err != nil {
		t.Error(err)
	}
	many := "search" + strings.Repeat(" a.b", 30) + "\n"
	if err := New(Options{ResolvConf: file(t, many)}).Check(); err != nil {
		t.Error(err)
	}
	reported := ""
	err := New(Options{ResolvConf: file(t, many), ClusterDomain: "c",
		WarnNode: func(reason, _ string) { reported = reason }}).Check()
	if err == nil || reported != "CheckLimitsForResolvConf" {
		t.Error(err, reported)
	}
	if err := New(Options{ResolvConf: "/not/there"}).Check(); err == nil {
		t.Error("a resolv.conf that is not there passes")
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.2.3.4\nsearch a b.\noptions ndots:5\n")
	f.Add("nameserver\nsearch .\n#x\n\t options a:b:c a\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		conf, err := parseResolvConf(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, list := range [][]string{conf.servers, conf.searches, conf.options} {
			for _, word := range list {
				if len(strings.Fields(word)) > 1 {
					t.Errorf("%q is not one word", word)
				}
			}
		}
		// What was understood is understood the same when written down again.
		again := ""
		for _, s := range conf.servers {
			again += "nameserver " + s + "\n"
		}
		if len(conf.searches) > 0 {
			again += "search " + strings.Join(conf.searches, ". ") + ".\n"
		}
		if len(conf.options) > 0 {
			again += "options " + strings.Join(conf.options, " ") + "\n"
		}
		second, err := parseResolvConf(strings.NewReader(again))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(again, "..") { // a domain that ends in several dots loses one each time
			return
		}
		if diff := cmp.Diff(conf, second, cmp.AllowUnexported(resolvConf{})); diff != "" {
			t.Error(diff)
		}
	})
}
