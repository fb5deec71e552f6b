package crilog

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestFormats(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	for line, want := range map[string]Entry{
		"2026-01-02T03:04:05.000000600Z stdout F text\n":                               {at, Stdout, false, []byte("text\n")},
		"2026-01-02T03:04:05.0000006Z stderr F  ab\n":                                  {at, Stderr, false, []byte(" ab\n")},
		"2026-01-02T03:04:05.0000006Z stderr F \n":                                     {at, Stderr, false, []byte("\n")},
		"2026-01-02T03:04:05.0000006Z stdout P text\n":                                 {at, Stdout, true, []byte("text")},
		"2026-01-02T03:04:05.0000006Z stdout P:x text\n":                               {at, Stdout, true, []byte("text")},
		"2026-01-02T03:04:05.0000006Z stdout F:x te":                                   {at, Stdout, false, []byte("te")},
		"2026-01-02T04:04:05.0000006+01:00 stdout F text":                              {at, Stdout, false, []byte("text")},
		`{"log":"a\n","stream":"stderr","time":"2026-01-02T03:04:05.0000006Z"}` + "\n": {at, Stderr, false, []byte("a\n")},
	} {
		format, err := FormatOf([]byte(line))
		if err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		got, err := format([]byte(line))
		if err != nil || !got.Time.Equal(want.Time) || got.Stream != want.Stream || got.Partial != want.Partial ||
			string(got.Text) != string(want.Text) {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "text", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z stdout",
		"2026-01-02T03:04:05Z stdout F", "2026-01-02T03:04:05Z stdlog F x", "yesterday stdout F x", `{"log":"a`} {
		if _, err := FormatOf([]byte(line)); err == nil {
			t.Errorf("%q is taken for a line of a log", line)
		}
	}
}

// TestLongLinesComeInPieces, whatever of them is read at a time.
func TestLongLinesComeInPieces(t *testing.T) {
	short, long := "short\n", strings.Repeat("x", 3*MaxLine+1)+"\n"
	text := short + long + "\n" + long + "end"
	for name, from := range map[string]io.Reader{
		"at once": strings.NewReader(text), "in bytes": iotest.OneByteReader(strings.NewReader(text)),
		"in halves": iotest.HalfReader(strings.NewReader(text)),
	} {
		r := NewReader(from)
		var lines []string
		var line strings.Builder
		for {
			piece, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || len(piece) == 0 || len(piece) > MaxLine+8<<10 {
				t.Fatalf("%s: a piece of %d bytes, %v", name, len(piece), err)
			}
			if line.Write(piece); piece[len(piece)-1] == '\n' {
				lines = append(lines, line.String())
				line.Reset()
			}
		}
		if !slices.Equal(lines, []string{short, long, "\n", long}) {
			t.Errorf("%s: %d lines", name, len(lines))
		}
		if rest := string(r.Rest()); rest != "end" || len(r.Rest()) > 0 {
			t.Errorf("%s: the rest is %q, and then more", name, rest)
		}
		if cap(r.line) > 2*keptBuffer {
			t.Errorf("%s: keeps %d bytes", name, cap(r.line))
		}
	}
}

// growing is a file to which more is written.
type growing struct{ strings.Builder }

func (g *growing) Read(p []byte) (int, error) {
	n := copy(p, g.String())
	rest := g.String()[n:]
	g.Reset()
	g.WriteString(rest)
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestALineThatIsWrittenInParts(t *testing.T) {
	g := &growing{}
	r := NewReader(g)
	for _, part := range []string{"", "one", "", " line"} {
		g.WriteString(part)
		if piece, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("%q, %v", piece, err)
		}
	}
	g.WriteString(" whole\nnext")
	if piece, err := r.Next(); err != nil || string(piece) != "one line whole\n" {
		t.Errorf("%q, %v", piece, err)
	}
	if piece, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v", piece, err)
	}
	if rest := string(r.Rest()); rest != "next" {
		t.Errorf("the rest is %q", rest)
	}
}

func FuzzFormatOf(f *testing.F) {
	f.Add("2026-01-02T03:04:05.000000600Z stdout P:x text\n")
	f.Add(`{"log":"a\n","stream":"stderr","time":"2026-01-02T03:04:05Z"}`)
	f.Fuzz(func(t *testing.T, line string) {
		format, err := FormatOf([]byte(line))
		if err != nil {
			return
		}
		if e, err := format([]byte(line)); err != nil {
			t.Errorf("%q: %+v, %v", line, e, err)
		}
	})
}
