//go:build long

package charts

import (
	"strings"
	"testing"
)

// TestLint has Helm lint the charts, with each helper and each kind of monitoring.
func TestLint(t *testing.T) {
	h := newHelm(t)
	h.run("lint", "--strict", h.chart("microlet"), "--set", "criticalPodsQuota=10",
		"--set", "operators[0].kind=Group,operators[0].name=admins",
		"--set", "metricsReaders[0].kind=ServiceAccount,metricsReaders[0].name=p,metricsReaders[0].namespace=monitoring")
	h.run("lint", "--strict", h.chart("microlet-helpers"))
	h.run(append([]string{"lint", "--strict", h.chart("microlet-helpers")}, everything...)...)
}

// everything enables all that the chart of the helpers has.
var everything = []string{
	"--set", "helpers.nodeapi.enabled=true", "--set", "helpers.stats.enabled=true",
	"--set", "helpers.evictor.enabled=true", "--set", "helpers.imagegc.enabled=true",
	"--set", "prometheusRule.enabled=true", "--set", "podMonitor.enabled=true",
}

// TestRefusedValues gives the charts values that are wrong. The answer names the value.
func TestRefusedValues(t *testing.T) {
	h := newHelm(t)
	for _, c := range []struct{ chart, set, names string }{
		{"microlet-helpers", "runtimeDir=run/microlet", "runtimeDir"},
		{"microlet-helpers", "runtimeDIR=/run/microlet", "runtimeDIR"},
		{"microlet-helpers", "peerCgroups=null", "peerCgroups"},
		{"microlet-helpers", "peerCgroups[0]=microlet.service", "peerCgroups/0"},
		{"microlet-helpers", "verbosity=loud", "verbosity"},
		{"microlet-helpers", "verbosity=11", "verbosity"},
		{"microlet-helpers", "image.pullPolicy=Sometimes", "image/pullPolicy"},
		{"microlet-helpers", "image.digest=sha256:1", "image/digest"},
		{"microlet-helpers", "image.tag=a b", "image/tag"},
		{"microlet-helpers", "image.repository=", "image/repository"},
		{"microlet-helpers", "helpers.podsync.enabled=true", "podsync"},
		{"microlet-helpers", "helpers.prober.enabled=maybe", "helpers/prober/enabled"},
		{"microlet-helpers", "helpers.prober.replicas=3", "replicas"},
		{"microlet-helpers", "helpers.prober.extraArgs[0]=v=4", "helpers/prober/extraArgs/0"},
		{"microlet-helpers", "helpers.prober.updateStrategy.type=Recreate", "helpers/prober/updateStrategy/type"},
		{"microlet-helpers", "helpers.stats.updateStrategy.rollingUpdate.maxSurge=1",
			"stats/updateStrategy/rollingUpdate"},
		{"microlet-helpers", "terminationGracePeriodSeconds=-1", "terminationGracePeriodSeconds"},
		{"microlet-helpers", "podMonitor.interval=often", "podMonitor/interval"},
		{"microlet-helpers", "podMonitor.enabled=true", "helpers.nodeapi.enabled"},
		{"microlet", "namespace.name=Microlet", "namespace/name"},
		{"microlet", "namespace=microlet", "namespace"},
		{"microlet", "criticalPodsQuota=-1", "criticalPodsQuota"},
		{"microlet", "operators[0].kind=Robot,operators[0].name=r", "operators/0/kind"},
		{"microlet", "metricsReaders[0].kind=ServiceAccount,metricsReaders[0].name=p", "metricsReaders/0"},
		{"microlet", "namespaces=a", "namespaces"},
	} {
		t.Run(c.chart+" "+c.set, func(t *testing.T) {
			out, err := h.try("template", "release", h.chart(c.chart), "--set", c.set)
			if err == nil {
				t.Fatalf("it is accepted: %s", out)
			}
			if !strings.Contains(err.Error(), c.names) {
				t.Errorf("the answer does not name %s: %v", c.names, err)
			}
		})
	}
}
