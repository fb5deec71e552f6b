package telemetry

import (
	"io"
	"log"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

const (
	// standardBurst is how many lines of package log may come at once, and standardPeriod the time for each further one.
	standardBurst  = 10
	standardPeriod = time.Second
	// maxStandard bounds a line, in bytes. net/http's of a handler that panics has a stack.
	maxStandard = 8 << 10
)

// standardLog takes the lines that libraries write with package log. Some of them are about what others send: net/http
// has a line for each frame of HTTP/2 that it does not know, so the server of a probe could fill the log. What comes
// too fast is dropped.
type standardLog struct {
	log   *slog.Logger
	limit *rate.Limiter
}

func newStandardLog(to *slog.Logger) io.Writer {
	return standardLog{to, rate.NewLimiter(rate.Every(standardPeriod), standardBurst)}
}

// takeStandardLog has package log write to the log of the process.
func takeStandardLog(to *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(newStandardLog(to))
}

// Write implements io.Writer.
func (s standardLog) Write(line []byte) (int, error) {
	if s.limit.Allow() {
		text := strings.ToValidUTF8(string(line[:min(len(line), maxStandard)]), "")
		s.log.Info(strings.TrimSuffix(text, "\n"))
	}
	return len(line), nil
}
