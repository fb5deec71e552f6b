package supervisor

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
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

func TestLongLinesAreCut(t *testing.T) {
	var out bytes.Buffer
	newStream(&out, "text").copy("pleg", strings.NewReader(strings.Repeat("x", 3*maxLine)+"\nend\n"))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if got := strings.Count(out.String(), "x"); len(lines) != 4 || got != 3*maxLine {
		t.Errorf("%d lines with %d of %d bytes", len(lines), got, 3*maxLine)
	}
}
