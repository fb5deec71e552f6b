package recentlog

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/microlet/microlet/services/internal/logkey"
)

// processOf is the process that a line of the node's log names behind time, level and message; empty if it is no such
// line.
func processOf(line []byte) string {
	if line[0] == '{' {
		var label struct{ Service string }
		_ = json.Unmarshal(line, &label) // what is no line of the log has no process
		return label.Service
	}
	_, rest, ok := bytes.Cut(line, []byte(" msg="))
	if !ok {
		return ""
	}
	if bytes.HasPrefix(rest, []byte(`"`)) {
		message, err := strconv.QuotedPrefix(string(rest))
		if err != nil {
			return ""
		}
		rest = rest[len(message):]
	} else if end := bytes.IndexByte(rest, ' '); end >= 0 {
		rest = rest[end:]
	}
	rest, ok = bytes.CutPrefix(rest, []byte(" "+logkey.Service+"="))
	if !ok {
		return ""
	}
	process, _, _ := bytes.Cut(rest, []byte(" "))
	return string(process)
}

// isOf reports whether a process's lines are asked for by a name: its own, its service's, or that of one of several
// services that it holds, such as "bus+nodestatus".
func isOf(process, name string) bool {
	service, _, _ := strings.Cut(process, ".")
	return process == name || service == name || slices.Contains(strings.Split(process, "+"), name)
}
