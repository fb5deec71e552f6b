package kubeletconfig

import (
	"errors"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
)

func TestExplain(t *testing.T) {
	for arg, want := range map[string]string{
		"--maxpods=3":       "--maxpods: the flag is unknown: did you mean --max-pods? If not, remove it",
		"--nod-ip=10.0.0.1": "--nod-ip: the flag is unknown: did you mean --node-ip? If not, remove it",
		"--network-plugin=cni": "--network-plugin: the kubelet has no such flag any more: remove it: the " +
			"container runtime's own configuration names the CNI plugins, since 1.24",
		"--oom-score-adj=abc": "--oom-score-adj=abc: the value does not fit: write a whole number",
		"--zzzzzzzzzzzzzz":    "--zzzzzzzzzzzzzz: the flag is unknown: remove it",
		"-x":                  "-x: the flag is unknown: remove it",
		"--=3":                "--=3: the flag has no name: write --flag=value, or remove it",
		"--containerd=/run/c": "--containerd: the kubelet has no such flag any more: remove it: it was " +
			"cAdvisor's; figures of containers come without it",
		`--cluster-dns="`: `--cluster-dns="\"": the quotes do not fit: write values joined by commas, with no quotes`,
		"--max-pods=abc":  "--max-pods=abc: the value does not fit: write a whole number",
		"--sync-frequency=5": "--sync-frequency=5: the value does not fit: write a duration, such as " +
			"10s or 2h45m",
		"--feature-gates=A":               "--feature-gates=A: the value does not fit: write key=value, joined by commas",
		"--address=here":                  `--address=here: "here" is not an IP address, such as 10.0.0.1 or ::1: see --help`,
		"--node-ip":                       "--node-ip: the value is missing: write --node-ip=STRING",
		"--manifest-url-header=s3cr3t":    "--manifest-url-header=<masked>: the value does not fit: write name:value",
		"--register-with-taints=a=b:Ever": `--register-with-taints=a=b:Ever: taint "a=b:Ever": effect "Ever" is none of NoSchedule, PreferNoSchedule, NoExecute: see --help`,
	} {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		NewFlags().AddTo(fs)
		err := fs.Parse([]string{arg})
		if err == nil {
			t.Errorf("%s: accepted", arg)
			continue
		}
		if got := Explain(fs, err).Error(); got != want {
			t.Errorf("%s:\n got %s\nwant %s", arg, got, want)
		}
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	NewFlags().AddTo(fs)
	named := regexp.MustCompile(`--([a-z-]+)`)
	for name, remedy := range removedFlags {
		if fs.Lookup(name) != nil {
			t.Errorf("--%s is a flag of the kubelet's", name)
		}
		for _, instead := range named.FindAllStringSubmatch(remedy, -1) {
			if fs.Lookup(instead[1]) == nil {
				t.Errorf("--%s: the remedy names --%s, which is no flag", name, instead[1])
			}
		}
	}
	if err := Explain(nil, pflag.ErrHelp); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}
