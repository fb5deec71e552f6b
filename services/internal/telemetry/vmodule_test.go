package telemetry

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

// logHere logs a line of each kind at the level, all from this file.
func logHere(log *slog.Logger, level int) {
	log.Log(context.Background(), slog.Level(-level), "own")
	log.With("pod", "a").WithGroup("g").Log(context.Background(), slog.Level(-level), "with attributes")
	v := klog.Level(level)
	klog.V(v).Info("klog")
	klog.V(v).Infof("klog %s", "formatted")
	klog.V(v).InfoS("klog structured", "n", 1)
	klog.Background().WithName("x").WithValues("n", 1).V(level).Info("klog contextual")
}

const linesHere = 6

func vmodule(t *testing.T, text string) (all logsapi.VModuleConfiguration) {
	t.Helper()
	if err := logsapi.VModuleConfigurationPflag(&all).Set(text); err != nil {
		t.Fatal(err)
	}
	return all
}

// Lines of a file that vmodule names are written from its level on, by any logger; others are not.
func TestVModule(t *testing.T) {
	for _, test := range []struct {
		vmodule   string
		verbosity int
		want      map[int]bool
	}{
		{"", 2, map[int]bool{2: true, 3: false}},
		{"vmodule_test=4", 0, map[int]bool{0: true, 4: true, 5: false}},
		{"vmodule*=4", 0, map[int]bool{4: true, 5: false}},
		{"vmodule=4,telemetry=4,vmod[=4", 0, map[int]bool{0: true, 1: false}},
		{"vmodule_test=1", 3, map[int]bool{3: true, 4: false}},
		{"other=9,vmod*=1,vmodule_test=5", 0, map[int]bool{1: true, 2: false}},
	} {
		var out bytes.Buffer
		o := LogOptions{Format: FormatText, Verbosity: test.verbosity, Output: &out, VModule: vmodule(t, test.vmodule)}
		log := slog.New(o.Handler())
		klog.SetSlogLogger(log)
		if err := setKlog(&o); err != nil {
			t.Fatal(err)
		}
		for level, written := range test.want {
			out.Reset()
			logHere(log, level)
			want := 0
			if written {
				want = linesHere
			}
			if got := strings.Count(out.String(), "\n"); got != want {
				t.Errorf("vmodule %q, v %d: %d lines of level %d, want %d:\n%s", test.vmodule, test.verbosity, got, level,
					want, &out)
			}
		}
	}
	klog.ClearLogger()
	if err := setKlog(&LogOptions{}); err != nil {
		t.Error(err)
	}
}

// A line without a source is of no file.
func TestVModuleWithoutSource(t *testing.T) {
	for level, want := range map[slog.Level]int{slog.LevelDebug: 0, slog.LevelInfo: 1} {
		var out bytes.Buffer
		o := LogOptions{Output: &out, VModule: vmodule(t, "*=4")}
		if err := o.Handler().Handle(t.Context(), slog.NewRecord(time.Now(), level, "line", 0)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("%d lines of level %v, want %d", got, level, want)
		}
	}
}

// A process that is started with the flags logs like the one that gives them.
func TestFlagsOfAnotherProcess(t *testing.T) {
	o := LogOptions{Format: FormatText, Verbosity: 3, VModule: vmodule(t, "worker=5,sync*=4")}
	got := strings.Join(o.Flags(), " ")
	if want := "--logging-format=text --v=3 --vmodule=worker=5,sync*=4"; got != want {
		t.Errorf("flags are %s, want %s", got, want)
	}
}

// The options of the format that is used count.
func TestSetKubelet(t *testing.T) {
	c := logsapi.NewLoggingConfiguration()
	c.Verbosity, c.VModule = 2, vmodule(t, "a=1")
	c.Options.Text.SplitStream = true
	if err := c.Options.JSON.InfoBufferSize.Set("512"); err != nil {
		t.Fatal(err)
	}
	var o LogOptions
	o.SetKubelet(c)
	if o.Format != FormatText || o.Verbosity != 2 || len(o.VModule) != 1 || !o.SplitStream || o.InfoBufferSize != 0 ||
		o.FlushFrequency != 5*time.Second {
		t.Errorf("of %+v: %+v", c, o)
	}
	c.Format = FormatJSON
	o.SetKubelet(c)
	if o.Format != FormatJSON || o.SplitStream || o.InfoBufferSize != 512 {
		t.Errorf("of %+v: %+v", c, o)
	}
}
