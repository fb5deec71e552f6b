package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/lock"
	"github.com/microlet/microlet/compose/rig/internal/process"
)

// TrialResult reports whether KVM works here.
type TrialResult struct {
	BootID string `json:"bootID"` // of this machine's boot: another one may have another kernel
	Trial  string `json:"trial"`  // what was tried
	Works  bool   `json:"works"`
	Why    string `json:"why"` // what was seen
}

// Device is what KVM is reached by.
const Device = "/dev/kvm"

// Absent returns why KVM cannot even be tried here, or "".
func Absent() string {
	f, err := os.OpenFile(Device, os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	_ = f.Close()
	return ""
}

// Remembered returns the result of this boot of this machine about that trial, if there is one in the cache.
func Remembered(cache, trial string) (TrialResult, bool) {
	var v TrialResult
	boot, err := process.BootID()
	if err != nil {
		return v, false
	}
	text, err := os.ReadFile(supportFile(cache))
	if err != nil || json.Unmarshal(text, &v) != nil {
		return TrialResult{}, false
	}
	return v, v.BootID == boot && v.Trial == trial
}

func supportFile(cache string) string { return filepath.Join(cache, "machine", "kvm.json") }

// Trial is a machine that is to switch itself off as soon as it has written a line to its console.
type Trial struct {
	// Name of what is tried: a result is of it alone.
	Name     string
	Program  string
	Hardware Hardware
	Marker   string
	// Limit bounds the time from power to the end.
	Limit time.Duration
}

// Try starts the machine unless this boot has a result, which it remembers. An error is of what is around it. A
// machine that hangs leaves nothing behind.
func Try(ctx context.Context, cache string, t Trial) (TrialResult, error) {
	file := supportFile(cache)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return TrialResult{}, fmt.Errorf("try KVM: %w", err)
	}
	unlock, err := lock.File(ctx, file+".lock", nil)
	if err != nil {
		return TrialResult{}, fmt.Errorf("try KVM: %w", err)
	}
	defer unlock()
	if v, ok := Remembered(cache, t.Name); ok {
		return v, nil
	}
	v := TrialResult{Trial: t.Name}
	if v.BootID, err = process.BootID(); err != nil {
		return v, fmt.Errorf("try KVM: %w", err)
	}
	if v.Works, v.Why, err = t.run(ctx); err != nil {
		return v, fmt.Errorf("try KVM: %w", err)
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return v, fmt.Errorf("remember whether KVM works: %w", err)
	}
	if err := os.WriteFile(file+".half", append(text, '\n'), 0o644); err != nil {
		return v, fmt.Errorf("remember whether KVM works: %w", err)
	}
	if err := os.Rename(file+".half", file); err != nil {
		return v, fmt.Errorf("remember whether KVM works: %w", err)
	}
	return v, nil
}

// run starts the machine and reports whether it did what it should, and what was seen.
func (t Trial) run(ctx context.Context) (works bool, why string, err error) {
	dir, err := os.MkdirTemp("", "kvm-")
	if err != nil {
		return false, "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	log := filepath.Join(dir, "console.log")
	// The machine ends with this thread at the latest, and so with the process, however that ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	p, err := process.Start(process.Spec{
		Name: "a machine that tries KVM", Path: t.Program, Args: t.Hardware.Args(), Dir: dir, Log: log,
		PIDNamespace: true, Pdeathsig: true,
	})
	if err != nil {
		return false, err.Error(), nil
	}
	limited, cancel := context.WithTimeout(ctx, t.Limit)
	defer cancel()
	waited := p.Wait(limited)
	took := time.Since(begin).Round(10 * time.Millisecond)
	if waited != nil {
		// A process that the kernel does not let go is no reason to wait, either.
		waited = errors.Join(waited, p.Stop(context.WithoutCancel(ctx), 0))
	}
	if ctx.Err() != nil {
		return false, "", ctx.Err()
	}
	text, err := os.ReadFile(log)
	switch end := lastLine(string(text)); {
	case err != nil:
		return false, "", err
	case waited != nil:
		return false, fmt.Sprintf("a kernel did not come to its end within %s; its last words: %q", t.Limit, end), nil
	case !strings.Contains(string(text), t.Marker):
		return false, fmt.Sprintf("a kernel did not get to its first program; its last words: %q", end), nil
	default:
		return true, fmt.Sprintf("a kernel started and ended in %s", took), nil
	}
}

// lastLine returns the last line that is not empty, in a length for a log.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	const most = 200
	return line[:min(len(line), most)]
}
