package eventlog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestAnEventIsALine(t *testing.T) {
	var out bytes.Buffer
	s := Sink{Log: slog.New(slog.NewTextHandler(&out, nil))}
	e := &v1.Event{
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "u"},
		Type:           v1.EventTypeWarning,
		Reason:         "BackOff",
		Message:        "Back-off restarting",
		Count:          1,
	}
	if _, err := s.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	e.Type, e.Count = v1.EventTypeNormal, 2
	if _, err := s.Patch(t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	const rest = `msg=event kind=Pod object=ns/p objectUID=u field="" reason=BackOff message="Back-off restarting" count=`
	if len(lines) != 2 || !strings.HasSuffix(lines[0], "level=WARN "+rest+"1") ||
		!strings.HasSuffix(lines[1], "level=INFO "+rest+"2") {
		t.Errorf("wrote %q", lines)
	}
}
