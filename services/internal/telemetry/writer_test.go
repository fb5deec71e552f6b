package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/services/internal/testing/proctest"
)

// streams are the two streams of a process, as files of their own.
func streams(t *testing.T) (stdout, stderr *os.File, read func(*os.File) string) {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	return open("out"), open("err"), func(f *os.File) string {
		t.Helper()
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

func logTo(w io.Writer, format string) {
	o := LogOptions{Format: format, Verbosity: 4, Output: w}
	log := slog.New(o.Handler())
	for _, level := range []slog.Level{slog.LevelDebug, -1, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		log.Log(nil, level, "a level=ERROR b", "level", "WARN") //nolint:staticcheck // no handler reads the context
	}
}

func TestSplitStreams(t *testing.T) {
	for _, format := range []string{FormatText, FormatJSON} {
		stdout, stderr, read := streams(t)
		w := newProcessWriter(&LogOptions{SplitStream: true}, stdout, stderr)
		logTo(w, format)
		if _, err := w.Write([]byte("no line of the log\n")); err != nil {
			t.Fatal(err)
		}
		w.Flush(time.Minute)
		out, errors := read(stdout), read(stderr)
		if strings.Count(out, "\n") != 3 || strings.Count(errors, "\n") != 3 ||
			!strings.HasSuffix(errors, "no line of the log\n") {
			t.Errorf("%s: standard output has\n%s\nand standard error\n%s", format, out, errors)
		}
	}
}

// Lines keep their order where both streams are one, as those of a service below "microlet up" are.
func TestOneStreamIsNotSplit(t *testing.T) {
	stdout, stderr, read := streams(t)
	for _, test := range []struct {
		o   LogOptions
		out *os.File
	}{{LogOptions{}, stdout}, {LogOptions{SplitStream: true, InfoBufferSize: 1 << 20}, stderr}} {
		before := strings.Count(read(stderr), "\n")
		w := newProcessWriter(&test.o, test.out, stderr)
		logTo(w, FormatText)
		w.Flush(time.Minute)
		if got := strings.Count(read(stderr), "\n") - before; got != 5 || read(stdout) != "" {
			t.Errorf("%+v: standard error has %d lines more, want 5; standard output has %q", test.o, got, read(stdout))
		}
	}
}

// Lines wait in the buffer until it is full, for as long as the options say, or until the process ends.
func TestInfoBuffer(t *testing.T) {
	stdout, stderr, read := streams(t)
	line := []byte("time=now level=INFO msg=" + strings.Repeat("x", 1000) + "\n")
	write := func(w *Writer, lines int) {
		for range lines {
			if _, err := w.Write(line); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := newProcessWriter(&LogOptions{SplitStream: true, InfoBufferSize: 10000, FlushFrequency: time.Hour}, stdout, stderr)
	write(w, 9)
	if _, err := w.Write([]byte("time=now level=ERROR msg=x\n")); err != nil {
		t.Fatal(err)
	}
	w.main.flush(time.Minute)
	if read(stdout) != "" || read(stderr) == "" {
		t.Errorf("standard output has %d bytes before the buffer is full, standard error %q", len(read(stdout)),
			read(stderr))
	}
	write(w, 1)
	proctest.Await(t, time.Minute, "the full buffer", func() bool { return len(read(stdout)) == 10*len(line) })
	write(w, 2)
	w.Flush(time.Minute)
	if got := len(read(stdout)); got != 12*len(line) {
		t.Errorf("%d bytes after Flush, want %d", got, 12*len(line))
	}
	w = newProcessWriter(&LogOptions{SplitStream: true, InfoBufferSize: 10000, FlushFrequency: time.Millisecond}, stdout,
		stderr)
	write(w, 1)
	proctest.Await(t, time.Minute, "a line that has waited", func() bool {
		return bytes.Count([]byte(read(stdout)), []byte("\n")) == 13
	})
}

// A buffer larger than what may wait for a reader can be filled.
func TestLargeBufferDropsNothing(t *testing.T) {
	stdout, stderr, read := streams(t)
	w := newProcessWriter(&LogOptions{SplitStream: true, InfoBufferSize: 3 * writerLimit, FlushFrequency: time.Hour},
		stdout, stderr)
	line := []byte("time=now level=INFO msg=" + strings.Repeat("x", 1000) + "\n")
	const lines = 2 * writerLimit / 1024
	for range lines {
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush(time.Minute)
	if got := len(read(stdout)); got != lines*len(line) || w.Dropped() > 0 {
		t.Errorf("%d bytes of %d arrived, %d lines were dropped", got, lines*len(line), w.Dropped())
	}
}
