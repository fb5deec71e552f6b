package containerlogs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/crilog"
)

// timestampFormat has all nine decimals, so that timestamps are below each other.
const timestampFormat = "2006-01-02T15:04:05.000000000Z07:00 "

// printer prints the lines of a log as the kubelet does, and long ones piece by piece.
type printer struct {
	stdout, stderr io.Writer
	since          time.Time
	timestamps     bool
	// bytes and lines are what may still be printed.
	bytes, lines int64

	format crilog.Format // nil before the first line
	// entry is the line of which the last piece was one, and within says that it goes on.
	entry  crilog.Entry
	within bool
	// ignored says that it is no line of a log.
	ignored bool
	// continues says that what comes next of the container's output is in the middle of a line, in which no timestamp is.
	continues bool
}

func newPrinter(o *v1.PodLogOptions, stdout, stderr io.Writer, now time.Time) *printer {
	p := &printer{stdout: stdout, stderr: stderr, timestamps: o.Timestamps, bytes: math.MaxInt64, lines: math.MaxInt64}
	if o.LimitBytes != nil {
		p.bytes = *o.LimitBytes
	}
	if o.TailLines != nil && !o.Follow {
		p.lines = *o.TailLines
	}
	if o.SinceSeconds != nil {
		p.since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	if o.SinceTime != nil && o.SinceTime.After(p.since) {
		p.since = o.SinceTime.Time
	}
	return p
}

// done reports whether nothing more is to be printed.
func (p *printer) done() bool { return p.bytes <= 0 || p.lines <= 0 }

// restart forgets the line of which another piece was to come: the log goes on in another file.
func (p *printer) restart() { p.within = false }

// print prints a line of the log, or the next piece of one.
func (p *printer) print(piece []byte) error {
	begins, ends := !p.within, bytes.HasSuffix(piece, []byte{'\n'})
	p.within = !ends
	if begins {
		if err := p.begin(piece); err != nil {
			return err
		}
	} else if p.entry.Text = piece; p.entry.Partial {
		p.entry.Text = bytes.TrimSuffix(piece, []byte{'\n'})
	}
	if p.ignored {
		return nil
	}
	if err := p.write(p.timestamps && begins && !p.continues); err != nil {
		return err
	}
	if ends {
		p.lines--
	}
	text := p.entry.Text
	p.continues = len(text) > 0 && text[len(text)-1] != '\n' || len(text) == 0 && !begins
	return nil
}

func (p *printer) begin(line []byte) (err error) {
	if p.format == nil {
		if p.format, err = crilog.FormatOf(line); err != nil {
			return fmt.Errorf("failed to get parse function: %w", err)
		}
	}
	p.entry, err = p.format(line)
	p.ignored = err != nil
	return nil
}

// write prints the text of the entry to its stream.
func (p *printer) write(timestamp bool) error {
	if p.entry.Time.Before(p.since) {
		return nil
	}
	var stream io.Writer
	switch p.entry.Stream {
	case crilog.Stdout:
		stream = p.stdout
	case crilog.Stderr:
		stream = p.stderr
	default:
		return errors.New("unexpected stream type")
	}
	if stream == nil { // not requested
		return nil
	}
	text := p.entry.Text
	if timestamp {
		text = append(p.entry.Time.AppendFormat(nil, timestampFormat), text...)
	}
	text = text[:min(int64(len(text)), p.bytes)]
	n, err := stream.Write(text)
	p.bytes -= int64(n)
	return err
}
