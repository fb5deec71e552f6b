package telemetry

import (
	"context"
	"log/slog"
	"math"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// sourceLevels are the levels from which on lines of certain source files are written, as klog's vmodule has them: a
// pattern names a file without folder and ".go", and the first pattern that matches decides.
type sourceLevels struct {
	base    slog.Leveler // for all other files
	lowest  slog.Level
	items   logsapi.VModuleConfiguration
	already sync.Map // program counter → slog.Level
}

func newSourceLevels(base slog.Leveler, items logsapi.VModuleConfiguration) *sourceLevels {
	s := &sourceLevels{base: base, items: items, lowest: math.MaxInt}
	for _, item := range items {
		s.lowest = min(s.lowest, itemLevel(item))
	}
	return s
}

func itemLevel(item logsapi.VModuleItem) slog.Level { return slog.Level(-int64(item.Verbosity)) }

// at returns the level of the source file that the program counter of a line lies in.
func (s *sourceLevels) at(pc uintptr) slog.Level {
	if level, known := s.already.Load(pc); known {
		return level.(slog.Level)
	}
	level := slog.Level(math.MaxInt)
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	name := strings.TrimSuffix(path.Base(frame.File), ".go")
	for _, item := range s.items {
		if matches, _ := filepath.Match(item.FilePattern, name); matches || item.FilePattern == name {
			level = itemLevel(item)
			break
		}
	}
	s.already.Store(pc, level)
	return level
}

// sourceHandler writes the lines that the level of their source file lets through. A handler's Enabled does not know
// the file, so it is Handle that decides.
type sourceHandler struct {
	slog.Handler
	levels *sourceLevels
}

var _ slog.Handler = sourceHandler{}

func (h sourceHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.levels.base.Level() || level >= h.levels.lowest
}

func (h sourceHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= h.levels.base.Level() || r.PC != 0 && r.Level >= h.levels.at(r.PC) {
		return h.Handler.Handle(ctx, r)
	}
	return nil
}

func (h sourceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return sourceHandler{h.Handler.WithAttrs(attrs), h.levels}
}

func (h sourceHandler) WithGroup(name string) slog.Handler {
	return sourceHandler{h.Handler.WithGroup(name), h.levels}
}
