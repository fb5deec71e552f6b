package supervisor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/microlet/microlet/services/internal/telemetry"
)

// maxLine bounds one line of a process's output; what is longer is cut into several.
const maxLine = 64 << 10

// stream is the one log stream of all processes. A line that its process has already labelled with
// its name passes as it is; any other, such as a goroutine dump's, is wrapped into a line that is.
type stream struct {
	mu  sync.Mutex
	out io.Writer
	// json says that lines are JSON objects.
	json bool
	raw  *slog.Logger
}

func newStream(out io.Writer, format string) *stream {
	s := &stream{out: out, json: format == telemetry.FormatJSON}
	o := telemetry.LogOptions{Format: format, Output: out}
	s.raw = slog.New(o.Handler())
	return s
}

// copy passes lines on until r ends. An unfinished last line counts as one.
func (s *stream) copy(service string, r io.Reader) {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 {
			s.line(service, bytes.TrimRight(line, "\r\n"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (s *stream) line(service string, line []byte) {
	if len(line) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.labelled(service, line) {
		whole := append(bytes.Clone(line), '\n') // one write, so that lines never mix
		_, _ = s.out.Write(whole)                // the log is where a failure would be told
		return
	}
	s.raw.Warn("process output", "service", service, "line", string(line))
}

// labelled says whether the line is the service's own, complete log line.
func (s *stream) labelled(service string, line []byte) bool {
	if !s.json {
		text := string(line)
		return strings.HasPrefix(text, "time=") && strings.Contains(text, " service="+service)
	}
	if line[0] != '{' {
		return false
	}
	var label struct {
		Service string `json:"service"`
	}
	return json.Unmarshal(line, &label) == nil && label.Service == service
}
