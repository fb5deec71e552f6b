package kubeletconfig

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/testing/golden"
)

// TestConfigurationDoc fails when docs/configuration.md differs from the tables. Run it with -update then.
func TestConfigurationDoc(t *testing.T) {
	golden.Check(t, "../../../docs/configuration.md", configurationDoc())
}

const docIntro = `# Configuration

<!-- Generated from services/internal/kubeletconfig; do not edit. Its tests fail if this page is stale. Update: -update. -->

microlet takes the command line of kubelet 1.37 and the files that it names. A unit file of the kubelet, or what kubeadm
wrote, works unchanged: replace ` + "`kubelet`" + ` with ` + "`microlet up`" + `. ` + "`microlet up --help`" +
	` lists microlet's own flags, and
[flags.md](flags.md#flags-of-microlet-up) explains them.

## Where a value comes from

A later source overrides an earlier one:

1. The kubelet's defaults.
2. The file of ` + "`--config`" +
	`: a KubeletConfiguration, kubelet.config.k8s.io/v1beta1, in YAML or JSON. Relative paths in it
   are relative to its folder.
3. The drop-ins of ` + "`--config-dir`" + `: every file whose name ends in ` + "`.conf`" +
	`, in lexical order, also in subfolders. Each
   drop-in has apiVersion and kind. Mappings are merged key by key, and lists are replaced. ` + "`null`" +
	` removes a value
   (KEP-3983): the default of the API then applies, whatever the file or the defaults of the command line say.
   ` + "`evictionHard`" + ` has no such default: ` + "`null`" + ` leaves no threshold.
4. The flags, as the kubelet has them: ` + "`--node_ip`" + ` is the same as ` + "`--node-ip`" + `, and the gates of ` +
	"`--feature-gates`" + `
   are added to those of the files.

As with the kubelet, a start without ` + "`--config`" +
	` has other defaults than a start with an empty file: anonymous requests,
AlwaysAllow, the read-only port 10255, and no eviction thresholds.

## What is checked

microlet checks all settings before it starts anything, including the settings of its own services. It reports all
errors at once. Each error has the field or flag, its value, where it was set, what is wrong, and what to do:

` + "```text" + `
oomScoreAdj=2000 (flag --oom-score-adj): the number is out of range: write a number from -1000 to 1000
maxPodz (file /var/lib/kubelet/config.yaml): the key is unknown: write "maxPods" if that was meant, otherwise remove it
` + "```" + `

microlet is stricter than the kubelet in these points:

- It refuses a key that is unknown or appears twice, in the file and in drop-ins. The kubelet starts with an unknown
  key: it logs the key if it is in the file, and drops it if it is in a drop-in.
- It refuses a file with several YAML documents. The kubelet reads the first.
- It refuses a ` + "`--node-ip`" + ` that is not an IP address. The kubelet ignores it.
- It refuses a taint in ` + "`--register-with-taints`" + ` that has no effect or is marked for removal (` + "`key-`" +
	`).
- It checks these settings at the start, before anything runs: endpoints other than unix sockets, ` + "`cgroupDriver`" +
	`,
  ` + "`clusterDNS`" + `, ` + "`--hostname-override`" + `, ` + "`--cloud-provider`" + `, and eviction thresholds.
- It refuses ` + "`qosReserved`" + ` without its feature gate. The kubelet ignores it.
- It refuses a ` + "`podCIDR`" + ` that is no range of addresses, and a negative ` + "`infoBufferSize`" + `.
- It refuses ` + "`systemCgroups`" + ` in the cgroup of the pods: what is left in the cgroup of a removed pod is killed.

microlet is less strict in one point: it accepts ` + "`--pod-infra-container-image`" +
	`, which was removed from the kubelet in
1.35, with a warning.

Like the kubelet, microlet does not start in these cases:

- No client can be created from the kubeconfig.
- No caller could sign in to the HTTPS API ("no authentication method configured").
- The machine has cgroup v1, unless ` + "`failCgroupV1: false`" + `.
- The machine has swap, unless ` + "`failSwapOn: false`" + `.

## What is not built yet

microlet never silently ignores a setting that it does not support. A setting counts only if it was set to a value that
differs from the default. (An empty default in the tables below means zero, false or nothing.) A setting that enforces
or protects something stops the start. All others are named in one warning.
`

// docSections are the states in the order of the document.
var docSections = []struct {
	state       support
	title, text string
}{
	{refused, "Refused", "These settings enforce or protect something, and this version cannot. A value other than the " +
		"default stops the start."},
	{warned, "Accepted with a warning",
		"These settings have no effect yet. The log says so at each start:\n*" + msgWarned + "*."},
	{idle, "Accepted without effect",
		"These settings are accepted without a warning, because they have nothing to do here."},
	{supported, "Supported", "These settings work as in the kubelet."},
}

func configurationDoc() string {
	var b strings.Builder
	b.WriteString(docIntro)
	for _, section := range docSections {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| field | flag | default | |\n|---|---|---|---|\n", section.title,
			section.text)
		for _, line := range docLines(section.state) {
			b.WriteString(line)
		}
	}
	fmt.Fprintf(&b, "\n## Feature gates\n\nmicrolet knows the %d gates of kubelet 1.37. It refuses an unknown gate, a "+
		"change to a locked gate, and a gate without\n"+
		"the gates that it depends on. The gates in this table change what this version does. Any other gate that "+
		"differs from\n"+
		"its default is named in a warning.\n\nmicrolet refuses to start if one of these gates is `true`. It lacks what they "+
		"turn on, which would change how pods\n"+
		"are resized:\n\n* %s\n\n| gate | stage | default |\n|---|---|---|\n", len(knownGates()),
		"`"+strings.Join(slices.Sorted(maps.Keys(refusedGates)), "`\n* `")+"`")
	for _, name := range slices.Sorted(maps.Keys(readGates)) {
		if g := knownGates()[name]; !allGates(name) {
			fmt.Fprintf(&b, "| `%s` | %s | %t |\n", name, g.Stage, g.Default)
		}
	}
	return b.String()
}

// docLines are the table lines of all fields and flags of one state, in the order of supportTable.
func docLines(state support) []string {
	flags := map[string]string{}
	for name, field := range fieldOfFlag() {
		flags[field] = "`--" + name + "`"
	}
	defaults := asObject(Default())
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	NewFlags().AddTo(fs)
	leaves := leafFields("", reflect.TypeFor[kc]())
	slices.Sort(leaves)
	var lines []string
	for _, row := range supportTable {
		if row.state != state {
			continue
		}
		note := row.note
		if name, isFlag := strings.CutPrefix(row.name, "--"); isFlag {
			lines = append(lines,
				fmt.Sprintf("| | `--%s` | %s | %s |\n", name, docValue(fs.Lookup(name).DefValue), note))
			continue
		}
		for _, leaf := range leaves {
			if rowOf(leaf).name == row.name {
				lines = append(lines,
					fmt.Sprintf("| `%s` | %s | %s | %s |\n", leaf, flags[leaf], docValue(at(defaults, leaf)), note))
				note = ""
			}
		}
	}
	return lines
}

func docValue(value any) string {
	if value == nil || value == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(show("", value), "|", "\\|") + "`"
}
