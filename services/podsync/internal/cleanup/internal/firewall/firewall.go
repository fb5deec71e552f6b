package firewall

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
)

const (
	defaultPeriod = time.Minute
	defaultSettle = 5 * time.Second
	// lockSeconds is how long a call waits for the lock that all users of iptables share.
	lockSeconds = 5
)

// Tables is what is needed of the packet filter of one IP family; *iptables.IPTables is one.
type Tables interface {
	ChainExists(table, chain string) (bool, error)
	NewChain(table, chain string) error
	Exists(table, chain string, rule ...string) (bool, error)
	Insert(table, chain string, position int, rule ...string) error
	Append(table, chain string, rule ...string) error
}

// Options of a Firewall.
type Options struct {
	// Period is how often the chains are looked at; 0 is the kubelet's minute.
	Period time.Duration
	// Settle is how long a program that flushes the rules has to finish, since chains that come back in the middle fail
	// its commands; 0 is 5 s.
	Settle time.Duration
	// Open returns the packet filter of a family; nil is that of the host's programs.
	Open    func(iptables.Protocol) (Tables, error)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Firewall keeps the chains of both families.
type Firewall struct {
	opts     Options
	families []*family
	restored *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// New returns a Firewall. It changes nothing yet.
func New(opts Options) (*Firewall, error) {
	if opts.Period == 0 {
		opts.Period = defaultPeriod
	}
	if opts.Settle == 0 {
		opts.Settle = defaultSettle
	}
	if opts.Open == nil {
		opts.Open = func(p iptables.Protocol) (Tables, error) {
			return iptables.New(iptables.IPFamily(p), iptables.Timeout(lockSeconds))
		}
	}
	f := &Firewall{
		opts: opts,
		families: []*family{
			{name: "IPv4", program: "iptables", protocol: iptables.ProtocolIPv4,
				lacks: "packets from elsewhere to 127.0.0.0/8 are not dropped (CVE-2020-8558), and there is no KUBE-IPTABLES-HINT"},
			{name: "IPv6", program: "ip6tables", protocol: iptables.ProtocolIPv6,
				lacks: "there is no KUBE-IPTABLES-HINT for IPv6"},
		},
		restored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_iptables_restored_total",
			Help: "Times that the kubelet's iptables chains were gone and were put back.",
		}, []string{"ip_family"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "microlet_podsync_iptables_failures_total",
			Help: "Looks at the kubelet's iptables chains that failed, or could not put them in place.",
		}, []string{"ip_family"}),
	}
	for _, counter := range []*prometheus.CounterVec{f.restored, f.failures} {
		if err := opts.Metrics.Register(counter); err != nil {
			return nil, err
		}
		for _, family := range f.families {
			counter.WithLabelValues(family.name)
		}
	}
	return f, nil
}

// Run puts the chains in place and looks after them until ctx ends. They stay then.
func (f *Firewall) Run(ctx context.Context) error {
	ticker := time.NewTicker(f.opts.Period)
	defer ticker.Stop()
	for {
		for _, family := range f.families {
			f.keep(ctx, family)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// keep puts a family's chains in place if they are not.
func (f *Firewall) keep(ctx context.Context, family *family) {
	gone, err := family.ensure(ctx, f.opts.Open, func() error {
		f.restored.WithLabelValues(family.name).Inc()
		f.opts.Log.Warn("iptables chains were removed by another program, and are put back", "family", family.name,
			logkey.Delay, f.opts.Settle)
		return pause.For(ctx, f.opts.Settle)
	})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		f.failures.WithLabelValues(family.name).Inc()
		if family.problem == "" {
			f.opts.Log.Warn("iptables chains not in place: "+family.lacks+"; install a "+family.program+
				" that works here, or set makeIPTablesUtilChains: false",
				"family", family.name, logkey.Err, err)
		}
		family.problem = err.Error()
	case gone || family.problem != "":
		f.opts.Log.Info("iptables chains in place", "family", family.name)
		family.problem = ""
	}
}
