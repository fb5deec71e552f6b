package oomwatch

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kill is a process that the kernel killed because memory ran out.
type Kill struct {
	// Process and PID are those of the process.
	Process string
	PID     int
	// System says that the node had no memory left, and not a cgroup.
	System bool
}

// begins is in the first line of those that the kernel writes about a kill.
const begins = "invoked oom-killer:"

// What the kernel writes after it. The first kind of line came with Linux 5.0. Most nodes never see any.
var (
	killedIn     = onUse(`oom-kill:constraint=.*,oom_memcg=(.*),task_memcg=.*,task=(.*),pid=(\d+),uid=`)
	killedLegacy = onUse(`Task in .* killed as a result of limit of (.*)`)
	killed       = onUse(`Killed process (\d+) \((.+)\)`)
)

// onUse compiles an expression when it is used first.
func onUse(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// parser joins the lines about a kill. The zero value is ready.
type parser struct {
	begun  bool
	cgroup string
}

// line takes a line in, and returns the kill that it completes.
func (p *parser) line(text string) (Kill, bool) {
	if strings.Contains(text, begins) {
		*p = parser{begun: true}
		return Kill{}, false
	}
	if !p.begun {
		return Kill{}, false
	}
	if m := killedIn().FindStringSubmatch(text); m != nil {
		p.cgroup = m[1]
		return p.end(m[2], m[3])
	}
	if m := killedLegacy().FindStringSubmatch(text); m != nil {
		p.cgroup = m[1]
		return Kill{}, false
	}
	if m := killed().FindStringSubmatch(text); m != nil {
		return p.end(m[2], m[1])
	}
	return Kill{}, false
}

func (p *parser) end(process, pid string) (Kill, bool) {
	k := Kill{Process: process, System: p.cgroup == "" || p.cgroup == "/"}
	*p = parser{}
	var err error
	k.PID, err = strconv.Atoi(pid)
	return k, err == nil
}

// parseRecord reads a record of /dev/kmsg: priority, sequence number, microseconds since boot and flags, then ";", then
// the line. See Documentation/ABI/testing/dev-kmsg of Linux.
func parseRecord(record string) (at time.Duration, line string, ok bool) {
	head, body, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return 0, "", false
	}
	micros, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || micros < 0 || micros > int64(1<<62)/1000 {
		return 0, "", false
	}
	line, _, _ = strings.Cut(body, "\n") // what follows is a dictionary
	return time.Duration(micros) * time.Microsecond, line, true
}
