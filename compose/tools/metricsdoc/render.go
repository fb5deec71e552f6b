package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

const head = `# Metrics

<!-- Written by compose/tools/metricsdoc; run "make generate" after a change of the sources. -->

This page lists the metrics that microlet's processes define. Each process serves its own on a socket, and
` + "`https://<node>:10250/metrics`" + ` serves those of all; see [monitoring](monitoring.md#metrics-and-health).
All processes have the metrics of Go's runtime (` + "`go_*`" + `) and of the process (` + "`process_*`" + `) besides.

A name that begins with ` + "`microlet_`" + ` is microlet's own. The others are the kubelet's: they have its names, its labels
and its meaning. ` + "`/metrics/cadvisor`, `/metrics/resource` and `/metrics/probes`" + ` have the kubelet's families, which
[figures](figures.md) describes.
`

// render writes the page: a table for each service, and one for what they share.
func render(all []metric) []byte {
	byService := map[string][]metric{}
	for _, m := range all {
		byService[m.Service] = append(byService[m.Service], m)
	}
	var names []string
	for name := range byService {
		names = append(names, name)
	}
	slices.Sort(names)
	var out bytes.Buffer
	out.WriteString(head)
	for _, name := range names {
		title := name
		if name == "" {
			title = "Shared by several services"
		}
		fmt.Fprintf(&out, "\n## %s\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n", title)
		for _, m := range byService[name] {
			var labels []string
			for _, l := range m.Labels {
				labels = append(labels, "`"+l+"`")
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(labels, ", "),
				strings.ReplaceAll(m.Help, "|", "\\|"))
		}
	}
	return out.Bytes()
}
