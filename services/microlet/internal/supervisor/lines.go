package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// maxLine bounds one line of a process's output; what is longer is cut into several.
const maxLine = 64 << 10

// A process that writes faster waits: its own log drops what does not fit. Otherwise it would have the supervisor
// compute for it, which shares podsync's part of the processors, and its lines would crowd out those of the others. A
// line costs its bytes and lineCost.
const (
	logRate  = 4 << 20 // per second
	logBurst = 8 << 20
	lineCost = 512
)

// stream is the one log stream of all processes. A line that its process has already labelled with
// its name passes as it is; any other, such as a goroutine dump's or one in another service's name, is wrapped into a
// line that is.
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

// copy passes lines on until r ends. An unfinished last line counts as one. The process of this name may hold several
// services, and write in their names too.
func (s *stream) copy(process string, r io.Reader, services ...string) {
	services = append(slices.Clone(services), process)
	br, limit := bufio.NewReaderSize(r, maxLine), rate.NewLimiter(logRate, logBurst)
	for {
		line, err := br.ReadSlice('\n')
		if len(line) > 0 {
			_ = limit.WaitN(context.Background(), len(line)+lineCost) // it fails for more than the burst alone
			s.line(process, services, bytes.TrimRight(line, "\r\n"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (s *stream) line(process string, services []string, line []byte) {
	if len(line) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.labelled(services, line) {
		whole := append(bytes.Clone(line), '\n') // one write, so that lines never mix
		_, _ = s.out.Write(whole)                // the log is where a failure would be reported
		return
	}
	s.raw.Warn("process output", serviceKey, process, logkey.Line, string(line))
}

// labelled reports whether the line is one that the log of one of the services writes: whole, with the service's name
// behind time, level and message, and without a second name that some reader could take for it.
func (s *stream) labelled(services []string, line []byte) bool {
	if s.json {
		return labelledJSON(services, line)
	}
	return labelledText(services, string(line))
}

// labels are the fields that begin each line of a service's log.
var labels = [...]string{slog.TimeKey, slog.LevelKey, slog.MessageKey, serviceKey}

const serviceKey = "service"

func labelledJSON(services []string, line []byte) bool {
	// JSON has control characters between its tokens alone, where the log writes none and where some readers end a
	// line.
	if line[0] != '{' || !json.Valid(line) || bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' }) {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if _, err := d.Token(); err != nil {
		return false
	}
	fields := 0
	for ; d.More(); fields++ {
		key, err := d.Token()
		name, isName := key.(string)
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil || !isName || !fits(fields, name) {
			return false
		}
		if fields == len(labels)-1 {
			var is string
			if json.Unmarshal(value, &is) != nil || !slices.Contains(services, is) {
				return false
			}
		}
	}
	return fields >= len(labels)
}

func labelledText(services []string, line string) bool {
	fields := 0
	for ; ; fields++ {
		key, rest, ok := textToken(line)
		if !ok || !strings.HasPrefix(rest, "=") {
			return false
		}
		value, rest, ok := textToken(rest[1:])
		if !ok || !fits(fields, key) || fields == len(labels)-1 && !slices.Contains(services, value) {
			return false
		}
		if rest == "" {
			return fields >= len(labels)-1
		}
		if line, ok = strings.CutPrefix(rest, " "); !ok {
			return false
		}
	}
}

// fits reports whether the field of this number may have the name. Some readers of JSON see no case.
func fits(field int, name string) bool {
	if field < len(labels) {
		return name == labels[field]
	}
	return !strings.EqualFold(name, serviceKey)
}

// textToken returns the key or value at the beginning, as slog's text has them: in quotes if it has anything in it that
// could be taken for something else.
func textToken(text string) (token, rest string, ok bool) {
	if strings.HasPrefix(text, `"`) {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil || strings.ContainsFunc(quoted, unprintable) {
			return "", "", false
		}
		token, err = strconv.Unquote(quoted)
		return token, text[len(quoted):], err == nil
	}
	end := strings.IndexAny(text, " =")
	if end < 0 {
		end = len(text)
	}
	token = text[:end]
	return token, text[end:], token != "" && !strings.Contains(token, `"`) && !strings.ContainsFunc(token, unprintable)
}

func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
