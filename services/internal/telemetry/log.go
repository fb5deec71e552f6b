package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Formats of log lines.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// MaxVerbosity is the most that a running process can be asked to log. From 8 on client-go logs the bodies of requests
// and answers, which hold Secrets and tokens, into a log that nodeapi and its callers may read.
const MaxVerbosity = 7

// LogOptions say how a process logs.
type LogOptions struct {
	// Format is "text" or "json". Default: text.
	Format string
	// Verbosity is klog's: 0 logs what an operator should see, 4 and more what a developer looks for. Default: 0.
	Verbosity int
	// Output is where lines go. Default: standard error.
	Output io.Writer

	level *slog.LevelVar // the process's, which may change; nil for one that stays
}

// AddFlags adds --logging-format and --v.
func (o *LogOptions) AddFlags(fs *pflag.FlagSet) {
	if o.Format == "" {
		o.Format = FormatText
	}
	fs.StringVar(&o.Format, "logging-format", o.Format, `format of log lines, "text" or "json"`)
	fs.IntVarP(&o.Verbosity, "v", "v", o.Verbosity, "verbosity of the log: 0 for operators, 4 and more for developers")
}

// Validate says what is wrong with the options.
func (o *LogOptions) Validate() error {
	switch o.Format {
	case "", FormatText, FormatJSON:
	default:
		return fmt.Errorf("logging-format is %q: use %q or %q", o.Format, FormatText, FormatJSON)
	}
	if o.Verbosity < 0 {
		return fmt.Errorf("v is %d: use 0 or more", o.Verbosity)
	}
	return nil
}

// Handler returns a handler that writes lines as the options say.
//
// klog's V(n) is slog's level -n. Such a line is labelled INFO down to -3 and DEBUG below.
func (o *LogOptions) Handler() slog.Handler {
	out := o.Output
	if out == nil {
		out = os.Stderr
	}
	var level slog.Leveler = slog.Level(-o.Verbosity)
	if o.level != nil {
		level = o.level
	}
	options := &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.LevelKey {
				if l, ok := a.Value.Any().(slog.Level); ok && l < slog.LevelInfo {
					return slog.String(slog.LevelKey, belowInfo(l))
				}
			}
			return a
		},
	}
	if o.Format == FormatJSON {
		return slog.NewJSONHandler(out, options)
	}
	return slog.NewTextHandler(out, options)
}

func belowInfo(l slog.Level) string {
	if l > slog.LevelDebug {
		return slog.LevelInfo.String()
	}
	return slog.LevelDebug.String()
}

// process is the one log of the process.
var process struct {
	mu     sync.Mutex
	writer *Writer
	log    *slog.Logger
	level  slog.LevelVar
}

// ProcessLogger makes the log of the process: slog's default and klog's lines carry the service's
// name from now on, and no line waits for its reader. Only the first call decides, since a process
// has one standard error; the later ones return loggers of the same log with their own name.
func ProcessLogger(o LogOptions, service string) (*slog.Logger, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.log != nil {
		return process.log.With(logkey.Service, service), nil
	}
	if o.Output == nil {
		o.Output = os.Stderr
	}
	process.writer = NewWriter(o.Output)
	o.Output, o.level = process.writer, &process.level
	process.level.Set(slog.Level(-o.Verbosity))
	process.log = slog.New(o.Handler())
	named := process.log.With(logkey.Service, service)
	slog.SetDefault(named)
	klog.SetSlogLogger(named)
	var level klog.Level
	if err := level.Set(strconv.Itoa(o.Verbosity)); err != nil {
		return nil, fmt.Errorf("set klog's verbosity: %w", err)
	}
	return named, nil
}

// SetVerbosity changes how much the process logs, from the next line on.
func SetVerbosity(v int) error {
	if v < 0 {
		return fmt.Errorf("verbosity is %d: use 0 or more", v)
	}
	var level klog.Level
	if err := level.Set(strconv.Itoa(v)); err != nil {
		return fmt.Errorf("set klog's verbosity: %w", err)
	}
	process.level.Set(slog.Level(-v))
	return nil
}

// ProcessWriter is what the process's log is written to; nil before ProcessLogger. Its user flushes
// it before the process ends.
func ProcessWriter() *Writer {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.writer
}
