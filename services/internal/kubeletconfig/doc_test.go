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

// TestConfigurationDoc fails when docs/configuration.md is not what the tables say: run it with -update then.
func TestConfigurationDoc(t *testing.T) {
	golden.Check(t, "../../../docs/configuration.md", configurationDoc())
}

const docIntro = `# Configuration

<!-- Generated from services/internal/kubeletconfig; do not edit. Its tests say when it is stale, and renew it with -update. -->

microlet takes the command line of kubelet 1.37 and the files that it names. A unit file, or what kubeadm wrote, works as
it is: put ` + "`microlet up`" + ` where it says ` + "`kubelet`" + `. microlet's own flags are listed by ` + "`microlet up --help`" + `.

## Where a value comes from

Later wins:

1. the kubelet's defaults;
2. the file of ` + "`--config`" + `: a KubeletConfiguration, kubelet.config.k8s.io/v1beta1, in YAML or JSON. Relative paths in it start at its folder;
3. the drop-ins of ` + "`--config-dir`" + `: every file whose name ends in ` + "`.conf`" + `, in lexical order, also in subfolders. Each names apiVersion
   and kind. Mappings are merged key by key, lists are replaced, and ` + "`null`" + ` takes a value away (KEP-3983): the
   API's default applies, whatever the file or the command line's own defaults say. ` + "`evictionHard`" + ` has none: ` + "`null`" + ` leaves no threshold;
4. the flags, as the kubelet has them: ` + "`--node_ip`" + ` is ` + "`--node-ip`" + `, and the gates of ` + "`--feature-gates`" + ` are added to those of the files.

As with the kubelet, a start without ` + "`--config`" + ` has other defaults than one with an empty file: anonymous requests, AlwaysAllow,
the read-only port 10255, and no eviction thresholds.

## What is checked

Everything that is wrong is reported at once, before anything starts, with the settings of microlet's own services too: each with the field or
flag, its value, where it was set, what is wrong and what to do:

` + "```" + `
oomScoreAdj=2000 (flag --oom-score-adj): the number is out of range: write a number from -1000 to 1000
maxPodz (file /var/lib/kubelet/config.yaml): the key is unknown: write "maxPods" if that was meant, otherwise remove it
` + "```" + `

microlet is stricter than the kubelet in this:

- An unknown key, or one given twice, is refused in the file and in drop-ins. The kubelet starts with an unknown key: in the file it logs it, in a
  drop-in it drops it.
- A file of several YAML documents is refused. The kubelet reads the first.
- ` + "`--node-ip`" + ` refuses what is no address. The kubelet leaves it out.
- A taint without an effect, or one to take away (` + "`key-`" + `), is refused in ` + "`--register-with-taints`" + `.
- Endpoints other than unix sockets, ` + "`cgroupDriver`" + `, ` + "`clusterDNS`" + `, ` + "`--hostname-override`" + `, ` + "`--cloud-provider`" + ` and eviction thresholds are checked
  at the start, before anything runs.

And in this it is more lenient: ` + "`--pod-infra-container-image`" + `, removed from the kubelet in 1.35, is accepted with a warning.

Like the kubelet, it does not start with a kubeconfig that no client can be made of, nor with an HTTPS API in which nobody could sign in
("no authentication method configured"). Nor does it on a machine with cgroup v1 unless ` + "`failCgroupV1: false`" + `, nor on one with swap unless ` + "`failSwapOn: false`" + `.

## What is not built yet

A setting that this version does not honour is never ignored in silence. Only a value that was set, and that differs from the
default, counts (an empty default below is zero, false or nothing). If the setting enforces or protects something, the start is refused; any other is named in one warning.
`

// docSections are the states in the order of the document.
var docSections = []struct {
	state       support
	title, text string
}{
	{refused, "Refused", "These enforce or protect something that this version does not enforce or protect. A value other than the default refuses the start."},
	{warned, "Accepted with a warning", "These have no effect yet. The log says at each start: *" + msgWarned + "*."},
	{idle, "Nothing to do", "These are accepted in silence: there is nothing for them to do."},
	{honoured, "Honoured", "These work as in the kubelet."},
}

func configurationDoc() string {
	var b strings.Builder
	b.WriteString(docIntro)
	fmt.Fprintf(&b, "\nWhat the kubelet does by default, and this version does not yet, is named in a warning of its own (*%s*):\n\n", msgByDefault)
	for _, row := range supportTable {
		if row.byDefault {
			fmt.Fprintf(&b, "- `%s`", row.name)
			if len(row.off) > 0 {
				fmt.Fprintf(&b, ", unless it is `%s`", row.off[0])
			}
			if row.note != "" {
				fmt.Fprintf(&b, ". %s", row.note)
			}
			b.WriteString("\n")
		}
	}
	fmt.Fprintf(&b, "\n`--bootstrap-kubeconfig` cannot request a client certificate yet. Where the file of `--kubeconfig` exists it is not needed; where it does not, the start is refused.\n")
	for _, section := range docSections {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| field | flag | default | |\n|---|---|---|---|\n", section.title, section.text)
		for _, line := range docLines(section.state) {
			b.WriteString(line)
		}
	}
	fmt.Fprintf(&b, "\n## Feature gates\n\nThe %d gates of kubelet 1.37 are known. An unknown one, a change to a locked one, and one without those that it depends on are\n"+
		"refused. These change what this version does; any other that is set to another value than its default is named in a warning.\n\n| gate | stage | default |\n|---|---|---|\n", len(knownGates()))
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
			lines = append(lines, fmt.Sprintf("| | `--%s` | %s | %s |\n", name, docValue(fs.Lookup(name).DefValue), note))
			continue
		}
		for _, leaf := range leaves {
			if rowOf(leaf).name == row.name {
				lines = append(lines, fmt.Sprintf("| `%s` | %s | %s | %s |\n", leaf, flags[leaf], docValue(at(defaults, leaf)), note))
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
