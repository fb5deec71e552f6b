package telemetry

import (
	"bytes"
	"log"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLibrariesDoNotFillTheLog by what others send to them.
func TestLibrariesDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		from := log.New(newStandardLog(slog.New(slog.NewTextHandler(&out, nil)).With("service", "prober")), "", 0)
		const seconds, each = 60, 100
		for range seconds {
			for range each {
				from.Printf("Transport: unhandled response frame type %s", strings.Repeat("x", 64<<10))
			}
			time.Sleep(time.Second)
		}
		n := strings.Count(out.String(), "service=prober")
		if n < seconds || n > seconds+standardBurst || out.Len() > n*2*maxStandard {
			t.Errorf("%d of %d lines are logged, with %d bytes", n, seconds*each, out.Len())
		}
	})
}

// TestLibrariesAreLogged in the name of the service.
func TestLibrariesAreLogged(t *testing.T) {
	before, flags := log.Writer(), log.Flags()
	defer func() {
		log.SetOutput(before)
		log.SetFlags(flags)
	}()
	var out bytes.Buffer
	takeStandardLog(slog.New(slog.NewTextHandler(&out, nil)).With("service", "prober"))
	log.Print("a panic\nin a handler")
	if got := out.String(); !strings.HasSuffix(got, `level=INFO msg="a panic\nin a handler" service=prober`+"\n") {
		t.Errorf("the line is %q", got)
	}
}
