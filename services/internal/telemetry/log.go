package telemetry

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
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
	// VModule raises the verbosity of source files, in the text format. Default: none.
	VModule logsapi.VModuleConfiguration
	// SplitStream has the process's log write lines below WARN to standard output. Default: all go to standard error.
	SplitStream bool
	// InfoBufferSize is how many bytes of these lines may wait to be written together, FlushFrequency for how long.
	// Default: none.
	InfoBufferSize int64
	FlushFrequency time.Duration
	// Output is where lines go. Default: standard error.
	Output io.Writer

	level *slog.LevelVar // the process's, which may change; nil for one that stays
}

// AddFlags adds --logging-format, --v, --vmodule and those of split streams.
func (o *LogOptions) AddFlags(fs *pflag.FlagSet) {
	if o.Format == "" {
		o.Format = FormatText
	}
	if o.FlushFrequency == 0 {
		o.FlushFrequency = logsapi.LogFlushFreqDefault
	}
	fs.StringVar(&o.Format, "logging-format", o.Format, `format of log lines, "text" or "json"`)
	fs.IntVarP(&o.Verbosity, "v", "v", o.Verbosity, "verbosity of the log: 0 for operators, 4 and more for developers")
	fs.Var(logsapi.VModuleConfigurationPflag(&o.VModule), "vmodule",
		"verbosity by source file, as pattern=N joined by commas; in the text format only")
	fs.BoolVar(&o.SplitStream, "log-split-stream", o.SplitStream,
		"write lines below WARN to standard output, and the others to standard error")
	fs.Int64Var(&o.InfoBufferSize, "log-info-buffer-size", o.InfoBufferSize,
		"bytes of lines for standard output that may wait to be written together, with --log-split-stream")
	fs.DurationVar(&o.FlushFrequency, logsapi.LogFlushFreqFlagName, o.FlushFrequency,
		"how long lines may wait in the buffer of --log-info-buffer-size")
}

// Flags have another process log like this one, which reads what that one writes: it splits no streams.
func (o *LogOptions) Flags() []string {
	flags := []string{"--logging-format=" + o.Format, fmt.Sprintf("--v=%d", o.Verbosity)}
	if len(o.VModule) > 0 {
		flags = append(flags, "--vmodule="+logsapi.VModuleConfigurationPflag(&o.VModule).String())
	}
	return flags
}

// SetKubelet takes what the kubelet's configuration says of logs.
func (o *LogOptions) SetKubelet(c *logsapi.LoggingConfiguration) {
	routing := c.Options.Text.OutputRoutingOptions
	if c.Format == FormatJSON {
		routing = c.Options.JSON.OutputRoutingOptions
	}
	o.Format, o.Verbosity, o.VModule = c.Format, int(c.Verbosity), c.VModule
	o.SplitStream, o.InfoBufferSize = routing.SplitStream, max(0, routing.InfoBufferSize.Value())
	o.FlushFrequency = c.FlushFrequency.Duration.Duration
}

// Validate says what is wrong with the options.
func (o *LogOptions) Validate() error {
	var errs []error
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	switch o.Format {
	case "", FormatText, FormatJSON:
	default:
		add(true, "logging-format is %q: use %q or %q", o.Format, FormatText, FormatJSON)
	}
	add(o.Verbosity < 0, "v is %d: use 0 or more", o.Verbosity)
	add(o.Format == FormatJSON && len(o.VModule) > 0, "vmodule is %q: it works in the format %q alone",
		logsapi.VModuleConfigurationPflag(&o.VModule), FormatText)
	add(o.InfoBufferSize < 0, "log-info-buffer-size is %d: use 0 or more", o.InfoBufferSize)
	add(o.InfoBufferSize > 0 && o.FlushFrequency <= 0, "log-flush-frequency is %v: use more than 0", o.FlushFrequency)
	return errors.Join(errs...)
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
	handler := slog.NewTextHandler(out, options)
	if len(o.VModule) > 0 {
		return sourceHandler{handler, newSourceLevels(level, o.VModule)}
	}
	return handler
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
	if o.Output != nil {
		process.writer = NewWriter(o.Output)
	} else {
		process.writer = newProcessWriter(&o, os.Stdout, os.Stderr)
	}
	o.Output, o.level = process.writer, &process.level
	process.level.Set(slog.Level(-o.Verbosity))
	process.log = slog.New(o.Handler())
	named := process.log.With(logkey.Service, service)
	slog.SetDefault(named)
	takeStandardLog(named) // after SetDefault, which does so too, without a limit
	klog.SetSlogLogger(named)
	return named, setKlog(&o)
}

// setKlog has klog itself pass on what the options ask for: it looks at them before it calls its logger.
func setKlog(o *LogOptions) error {
	var level klog.Level
	if err := level.Set(strconv.Itoa(o.Verbosity)); err != nil {
		return fmt.Errorf("set klog's verbosity: %w", err)
	}
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if err := flags.Set("vmodule", logsapi.VModuleConfigurationPflag(&o.VModule).String()); err != nil {
		return fmt.Errorf("set klog's vmodule: %w", err)
	}
	return nil
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
