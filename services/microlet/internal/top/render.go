package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Escapes of a terminal.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	normal = "\x1b[0m"
)

// columnsGap is between the rates and what waits.
const columnsGap = 4

// screen is what fits on a terminal of this size, of which the pods are shown from the first on.
type screen struct {
	width, height, firstPod int
}

// render shows a node, with rates since the one before; before is nil at first.
func (s screen) render(n, before *Node) string {
	lines := []string{
		bold + fmt.Sprintf("microlet %s, %s, %d pods, %s", n.Version, n.Placement, len(n.Pods),
			n.Time.Format(time.TimeOnly)) + normal,
		"",
	}
	lines = append(lines, processLines(n, before)...)
	lines = append(lines, "")
	lines = append(lines, figureLines(n, before)...)
	for _, f := range n.Faults {
		lines = append(lines, red+printable(f)+normal)
	}
	lines = append(lines, "")
	lines = append(lines, s.podLines(n, s.height-len(lines)-1)...)
	for i, line := range lines {
		lines[i] = cut(line, s.width)
	}
	last := max(0, s.height-1)
	if len(lines) > last {
		lines = lines[:last]
	}
	for len(lines) < last {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, cut("q ends, the arrows move through the pods", s.width)), "\n")
}

// table aligns rows, the first of which is the head. Those that alarm says so of are red.
func table(rows [][]string, alarm func(row int) bool) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Builder takes all
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i, line := range lines {
		switch {
		case i == 0:
			lines[i] = bold + line + normal
		case alarm(i - 1):
			lines[i] = red + line + normal
		}
	}
	return lines
}

func processLines(n, before *Node) []string {
	rows := [][]string{{"SERVICE", "STATE", "PID", "UPTIME", "RESTARTS", "MEMORY", "CPU", "HEARTBEAT"}}
	for _, p := range n.Processes {
		pid, memory, heartbeat, cpu := "-", "-", "-", "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		if p.Memory != 0 {
			memory = fmt.Sprintf("%.1f MiB", float64(p.Memory)/(1<<20))
		}
		if p.Heartbeat >= 0 {
			heartbeat = fmt.Sprintf("%.1fs ago", p.Heartbeat.Seconds())
		}
		if before != nil {
			if cores, ok := n.rate(before, cpuMetric, p.Name); ok && !p.Shared {
				cpu = fmt.Sprintf("%.1f%%", 100*cores)
			}
		}
		rows = append(rows, []string{
			printable(p.Name), p.State, pid, p.Uptime.Truncate(time.Second).String(), fmt.Sprint(p.Restarts), memory, cpu,
			heartbeat,
		})
	}
	well := []string{"ready", "external", "on demand"}
	return table(rows, func(i int) bool { return !slices.Contains(well, n.Processes[i].State) })
}

// figureLines has the rates on the left and what waits on the right.
func figureLines(n, before *Node) []string {
	left := []string{"RATES, PER SECOND"}
	for _, f := range rates {
		text := "-"
		if before != nil {
			text = number(n.rate(before, f.metric))
		}
		left = append(left, fmt.Sprintf("%-30s %6s", f.label, text))
	}
	right := []string{"NOW"}
	for _, f := range waiting {
		right = append(right, fmt.Sprintf("%-35s %6s", f.label, number(n.sum(f.metric))))
	}
	var lines []string
	for i, l := range left {
		line := l
		if i < len(right) {
			line = fmt.Sprintf("%-37s%*s%s", l, columnsGap, "", right[i])
		}
		if i == 0 {
			line = bold + line + normal
		}
		lines = append(lines, line)
	}
	return lines
}

// podLines are as many pods as there is room for, those that do not run well first.
func (s screen) podLines(n *Node, room int) []string {
	pods := slices.Clone(n.Pods)
	slices.SortStableFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	first := min(s.firstPod, max(0, len(pods)-1))
	pods = pods[first:]
	pods = pods[:max(0, min(len(pods), room-1))]
	rows := [][]string{{"NAMESPACE", "POD", "READY", "STATUS", "RESTARTS"}}
	for _, p := range pods {
		rows = append(rows, []string{
			printable(p.Namespace), printable(p.Name), fmt.Sprintf("%d/%d", p.Ready, p.Containers), printable(p.Status),
			fmt.Sprint(p.Restarts),
		})
	}
	return table(rows, func(i int) bool { return rank(pods[i]) == 0 })
}

// rank is 0 for a pod that does not run as it should.
func rank(p Pod) int {
	if p.Status == "Running" && p.Ready == p.Containers || p.Status == "Completed" || p.Status == "Succeeded" {
		return 1
	}
	return 0
}

// printable is text that does nothing to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// cut is a line of at most so many columns. Its escapes take none.
func cut(line string, columns int) string {
	var b strings.Builder
	escape := false
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r != 'm'
		case columns <= 0:
			continue
		default:
			columns--
		}
		b.WriteRune(r)
	}
	return b.String()
}
