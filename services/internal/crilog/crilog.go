// Package crilog reads the logs that container runtimes write.
//
// A log is a file of lines as "2016-10-06T00:17:09.669794202Z stdout F text". Runtimes split what containers print at
// 16 KiB. But pods may be able to write such files as well. So what a line takes of memory is bounded: a Reader returns
// a long line in pieces.
package crilog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// MaxLine is the length from which a line comes in pieces. 16 KiB of text may take six times as much in JSON.
	MaxLine = 128 << 10
	// keptBuffer is how large a buffer a Reader keeps from one line to the next.
	keptBuffer = 64 << 10
	// timeFormat is that of RFC 3339 with any number of decimals.
	timeFormat = "2006-01-02T15:04:05.999999999Z07:00"
)

// The streams of a container.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Entry is a line of a log.
type Entry struct {
	Time   time.Time
	Stream string
	// Partial says that what the container printed goes on in the next entry of the stream.
	Partial bool
	// Text is what the container printed, with the end of line unless it is partial. It may be part of what was parsed.
	Text []byte
}

// Format parses a line, or the first piece of one.
type Format func(line []byte) (Entry, error)

// FormatOf returns the format of a log by one of its lines: CRI's, or Docker's in JSON. Its error does not show the
// line, which is the pod's alone.
func FormatOf(line []byte) (Format, error) {
	for _, f := range []Format{parse, parseJSON} {
		if _, err := f(line); err == nil {
			return f, nil
		}
	}
	return nil, errors.New("unsupported log format")
}

func parse(line []byte) (e Entry, err error) {
	at, line, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return e, errors.New("timestamp is not found")
	}
	if e.Time, err = time.Parse(timeFormat, string(at)); err != nil {
		return e, fmt.Errorf("unexpected timestamp format: %w", err)
	}
	stream, line, ok := bytes.Cut(line, []byte{' '})
	if e.Stream = string(stream); !ok || e.Stream != Stdout && e.Stream != Stderr {
		return e, errors.New("unexpected stream type")
	}
	tags, text, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return e, errors.New("log tag is not found")
	}
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	if e.Partial = string(tag) == "P"; e.Partial {
		text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	e.Text = text
	return e, nil
}

func parseJSON(line []byte) (Entry, error) {
	var l struct {
		Log    string    `json:"log"`
		Stream string    `json:"stream"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return Entry{}, err
	}
	return Entry{Time: l.Time, Stream: l.Stream, Text: []byte(l.Log)}, nil
}

// Reader reads a log line by line.
type Reader struct {
	from *bufio.Reader
	line []byte
	// returned says that the line was returned, and ended that it was the end of one.
	returned, ended bool
}

// NewReader returns a Reader that has read nothing yet.
func NewReader(from io.Reader) *Reader { return &Reader{from: bufio.NewReader(from), ended: true} }

// Next returns the next line with its end, or the next piece of a long one, which has none unless it is the last. It is
// valid until the next call. With io.EOF there is no more, as yet: what was read of a line is kept for the next call.
func (r *Reader) Next() ([]byte, error) {
	if r.returned {
		if r.ended && cap(r.line) > keptBuffer {
			r.line = nil
		}
		r.line, r.returned = r.line[:0], false
	}
	for {
		part, err := r.from.ReadSlice('\n')
		r.line = append(r.line, part...)
		r.ended = bytes.HasSuffix(part, []byte{'\n'})
		if r.ended || len(r.line) >= MaxLine {
			r.returned = true
			return r.line, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// Rest returns what was read of a line of which the end is missing.
func (r *Reader) Rest() []byte {
	if r.returned {
		return nil
	}
	r.returned, r.ended = true, false
	return r.line
}
