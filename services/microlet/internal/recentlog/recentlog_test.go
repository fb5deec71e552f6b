package recentlog

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/telemetry"
)

// write logs as a process of the name does.
func write(t *testing.T, to io.Writer, format, process, message string, args ...any) {
	t.Helper()
	o := telemetry.LogOptions{Format: format, Output: to}
	slog.New(o.Handler()).With("service", process).Info(message, args...)
}

func TestProcessOf(t *testing.T) {
	for _, message := range []string{
		"plain", "of two words", `with " service=bus " quotes`, "x=y", `msg= service=bus x`, "",
	} {
		for _, format := range []string{telemetry.FormatText, telemetry.FormatJSON} {
			var b bytes.Buffer
			write(t, &b, format, "prober.1", message, "service2", "bus", "text", " service=bus ")
			if got := processOf(b.Bytes()); got != "prober.1" {
				t.Errorf("%q is of %q", &b, got)
			}
		}
	}
	for _, other := range []string{"x", "{", `{"service":3}`, "panic: msg=", `time=x level=INFO msg="`, "a msg=b c=d"} {
		if got := processOf([]byte(other)); got != "" {
			t.Errorf("%q is of %q", other, got)
		}
	}
}

func messages(p Page) string {
	var all []string
	for _, line := range p.Lines {
		_, rest, _ := strings.Cut(string(line), "msg=")
		message, _, _ := strings.Cut(rest, " ")
		all = append(all, message)
	}
	return strings.Join(all, " ")
}

func TestRead(t *testing.T) {
	l := New()
	for i, process := range []string{"bus", "prober", "up", "prober.1", "bus"} {
		write(t, l, telemetry.FormatText, process, fmt.Sprint("m", i), "pod", "default/web", "n", i)
	}
	write(t, l, telemetry.FormatText, "bus", "m5", "pod", "default/web-2")
	if !isOf("bus+nodestatus", "nodestatus") || isOf("bus+nodestatus", "status") || !isOf("a+b", "a+b") {
		t.Error("the lines of a process with several services are not those of each")
	}
	if _, err := l.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		query Query
		want  string
	}{
		{Query{}, "m0 m1 m2 m3 m4 m5"},
		{Query{Process: "prober"}, "m1 m3"},
		{Query{Process: "prober.1"}, "m3"},
		{Query{Process: "prob"}, ""},
		{Query{After: 4}, "m4 m5"},
		{Query{Words: []string{"web"}}, "m0 m1 m2 m3 m4"},
		{Query{Words: []string{"default/web-2"}}, "m5"},
		{Query{Words: []string{"web-"}}, ""},
		{Query{Words: []string{"web-", "default/web-2"}}, "m5"},
	} {
		page := l.Read(c.query)
		if got := messages(page); got != c.want || page.Last != 6 || page.Missed {
			t.Errorf("%+v: %q, last %d, missed %v; want %q", c.query, got, page.Last, page.Missed, c.want)
		}
	}
}

// A process that logs much loses its own lines alone, and a reader learns that it missed some.
func TestBounds(t *testing.T) {
	l := New()
	write(t, l, telemetry.FormatText, "bus", "quiet")
	for i := range 1000 {
		write(t, l, telemetry.FormatText, "pleg", fmt.Sprint("m", i), "long", strings.Repeat("x", 1000))
	}
	write(t, l, telemetry.FormatText, "pleg", "toolong", "long", strings.Repeat("x", keptBytes))
	page := l.Read(Query{})
	if got := messages(page); !strings.HasPrefix(got, "quiet m") || !strings.HasSuffix(got, " m999") {
		t.Errorf("kept are %q", got)
	}
	size := 0
	for _, line := range page.Lines {
		size += len(line)
	}
	if size > 2*keptBytes || size < keptBytes/2 {
		t.Errorf("%d bytes are kept", size)
	}
	if !l.Read(Query{After: 5}).Missed || l.Read(Query{After: 5, Process: "bus"}).Missed ||
		l.Read(Query{After: 1000}).Missed {
		t.Error("a reader does not learn what it missed, or learns it of another process")
	}
	for i := range 2 * maxProcesses {
		write(t, l, telemetry.FormatText, fmt.Sprint("p", i), "m")
	}
	if n := len(l.processes); n != maxProcesses {
		t.Errorf("lines of %d processes are kept, want %d", n, maxProcesses)
	}
}

func TestFollow(t *testing.T) {
	l := New()
	page := l.Read(Query{})
	select {
	case <-page.Changed:
		t.Fatal("there is something to read")
	default:
	}
	write(t, l, telemetry.FormatText, "bus", "m")
	<-page.Changed
	if page = l.Read(Query{After: page.Last}); messages(page) != "m" {
		t.Errorf("read %q", messages(page))
	}
	l.Close()
	l.Close()
	<-page.Changed
	if page = l.Read(Query{After: page.Last}); page.Changed != nil || len(page.Lines) != 0 {
		t.Errorf("after the end: %+v", page)
	}
}

func FuzzProcessOf(f *testing.F) {
	for _, seed := range []string{"x", `time=1 level=INFO msg="a b" service=bus`, `{"service":"bus"}`, "{"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l := New()
		if n, err := l.Write(data); n != len(data) || err != nil {
			t.Errorf("Write is %d, %v", n, err)
		}
		for _, line := range l.Read(Query{}).Lines {
			if slices.Contains(line, '\n') {
				t.Errorf("%q is several lines", line)
			}
		}
	})
}
