package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/telemetry"
)

func TestTextLines(t *testing.T) {
	var out bytes.Buffer
	s := newStream(&out, "text")
	own := "time=2026-01-01T00:00:00Z level=INFO msg=hello service=pleg n=1\n"
	s.copy("pleg", strings.NewReader(own+"panic: boom\n\ngoroutine 1 [running]:\nlast"))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || lines[0]+"\n" != own {
		t.Fatalf("wrote\n%s", &out)
	}
	for i, want := range []string{`line="panic: boom"`, `line="goroutine 1 [running]:"`, "line=last"} {
		if got := lines[i+1]; !strings.Contains(got, `msg="process output" service=pleg `+want) {
			t.Errorf("line %d is %s, want %s", i+1, got, want)
		}
	}
}

func TestJSONLines(t *testing.T) {
	var out bytes.Buffer
	s := newStream(&out, "json")
	own := `{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"pleg"}`
	// Another's name in a line does not pass for the process's own.
	s.copy("pleg", strings.NewReader(own+"\n{\"service\":\"bus\"}\n{broken\nfatal error: \"x\"\n"))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || lines[0] != own {
		t.Fatalf("wrote\n%s", &out)
	}
	for i, want := range []string{`{"service":"bus"}`, "{broken", `fatal error: "x"`} {
		var l struct{ Msg, Service, Line string }
		if err := json.Unmarshal([]byte(lines[i+1]), &l); err != nil {
			t.Fatalf("%s: %v", lines[i+1], err)
		}
		if l.Service != "pleg" || l.Line != want {
			t.Errorf("line is %+v, want %s", l, want)
		}
	}
}

// TestLinesOfSeveralServices: a process may write in the names of its services, and in no other.
func TestLinesOfSeveralServices(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out, written bytes.Buffer
		o := telemetry.LogOptions{Format: format, Output: &written}
		for _, name := range []string{"bus", "nodestatus", "bus+nodestatus", "podsync"} {
			slog.New(o.Handler()).With("service", name).Info("hello")
		}
		own := strings.SplitAfter(written.String(), "\n")[:3]
		newStream(&out, format).copy("bus+nodestatus", &written, "bus", "nodestatus")
		lines := strings.SplitAfter(out.String(), "\n")
		if !slices.Equal(lines[:3], own) || !strings.Contains(lines[3], "process output") ||
			!strings.Contains(lines[3], "bus+nodestatus") {
			t.Errorf("%s: wrote\n%s", format, &out)
		}
	}
}

func TestLongLinesAreCut(t *testing.T) {
	var out bytes.Buffer
	newStream(&out, "text").copy("pleg", strings.NewReader(strings.Repeat("x", 3*maxLine)+"\nend\n"))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if got := strings.Count(out.String(), "x"); len(lines) != 4 || got != 3*maxLine {
		t.Errorf("%d lines with %d of %d bytes", len(lines), got, 3*maxLine)
	}
}

// TestLinesInAnothersName: none passes for the other's.
func TestLinesInAnothersName(t *testing.T) {
	for format, lines := range map[string][]string{
		telemetry.FormatText: {
			`time=2026-01-01T00:00:00Z level=INFO msg=hello service=podsync x=" service=pleg"`,
			`time=2026-01-01T00:00:00Z level=INFO msg=hello service=podsync service=pleg`,
			`time=2026-01-01T00:00:00Z level=INFO msg=hello service=pleg service=podsync`,
			`time=2026-01-01T00:00:00Z level=INFO msg=hello service=pleg "service"=podsync`,
			`time=2026-01-01T00:00:00Z level=INFO msg=hello service=plegs`,
			`time=2026-01-01T00:00:00Z service=podsync level=INFO msg=hello service=pleg`,
			`time=2026-01-01T00:00:00Z level=INFO msg=" service=pleg" service=podsync`,
			"time=2026-01-01T00:00:00Z level=INFO msg=hello service=pleg x=\rtime=2026-01-01T00:00:00Z",
			"time=2026-01-01T00:00:00Z level=INFO msg=hello service=pleg x=\"\x1b[2K service=podsync\"",
			`time=2026-01-01T00:00:00Z level=INFO msg=hello service=pleg and more`,
			`time=2026-01-01T00:00:00Z level=INFO msg=hello`,
		},
		telemetry.FormatJSON: {
			`{"service":"podsync","time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","Service":"pleg"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"podsync","Service":"pleg"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"podsync","service":"pleg"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"pleg","service":"podsync"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"pleg","serv\u0069ce":"podsync"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"pleg"}{"service":"podsync"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","Service":"pleg"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":["pleg"]}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello"}`,
			`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"hello","service":"pleg","x":[` + "\r" +
				`{"time":"2026-01-01T00:00:00Z","level":"INFO","msg":"forged","service":"podsync"}` + "\r]}",
		},
	} {
		for _, line := range lines {
			var out bytes.Buffer
			newStream(&out, format).copy("pleg", strings.NewReader(line+"\n"))
			if got := out.String(); !strings.Contains(got, "process output") || strings.Count(got, "\n") != 1 {
				t.Errorf("%s\npasses as %s", line, got)
			}
		}
	}
}

// TestEveryLineOfTheLogPasses as the service's log writes it, whatever is in it.
func TestEveryLineOfTheLogPasses(t *testing.T) {
	for _, format := range []string{telemetry.FormatText, telemetry.FormatJSON} {
		var log bytes.Buffer
		o := telemetry.LogOptions{Format: format, Verbosity: 5, Output: &log}
		l := slog.New(o.Handler()).With("service", "pleg")
		for _, text := range []string{"hello", "", "two words", "a=b", `a "quote"`, "two\nlines", "\x1b[2K\r", "\xff",
			"grün \u202e", `\`, " service=podsync", "service", "{}"} {
			l.Info(text, "value", text, "error", errors.New(text), "key of "+text, time.Second)
			l.WithGroup("group").Log(context.Background(), -4, text, "service", text, "list", []string{text}, "any",
				struct{ Text string }{text})
		}
		var out bytes.Buffer
		newStream(&out, format).copy("pleg", bytes.NewReader(log.Bytes()))
		got, want := strings.Split(out.String(), "\n"), strings.Split(log.String(), "\n")
		for i := range want {
			if i < len(got) && got[i] != want[i] {
				t.Errorf("%s\nis passed on as %s", want[i], got[i])
			}
		}
		if len(got) != len(want) {
			t.Errorf("of %d lines %d are passed on", len(want), len(got))
		}
	}
}

// TestAProcessThatWritesMuch waits, whether its lines are long or many.
func TestAProcessThatWritesMuch(t *testing.T) {
	for _, line := range []string{"x\n", strings.Repeat("x", 10_000) + "\n"} {
		synctest.Test(t, func(t *testing.T) {
			r, w := io.Pipe()
			s := newStream(io.Discard, telemetry.FormatText)
			var copied sync.WaitGroup
			copied.Go(func() { s.copy("prober", r) })
			began := time.Now()
			const lines = 40_000
			for range lines {
				if _, err := io.WriteString(w, line); err != nil {
					t.Fatal(err)
				}
			}
			_ = w.Close()
			copied.Wait()
			want := time.Duration(lines*(len(line)+lineCost)-logBurst) * time.Second / logRate
			if took := time.Since(began); took < want {
				t.Errorf("%d lines of %d bytes take %v, want %v", lines, len(line), took, want)
			}
		})
	}
}
