package qemu

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// has reports whether the arguments hold these, one after the other.
func has(args []string, want ...string) bool {
	for i := range args {
		if len(args)-i >= len(want) && slices.Equal(args[i:i+len(want)], want) {
			return true
		}
	}
	return false
}

func TestArgs(t *testing.T) {
	h := Hardware{
		Accel: KVM, Memory: 1024, CPUs: 3, Kernel: "/k", Initrd: "/i", Parameters: []string{"rw", "quiet"},
		Disk: "/a,b/disk", Modules: "/m", Tap: "tap0", MAC: "52:54:00:01:02:03",
	}
	args := h.Args()
	for _, want := range [][]string{
		{"-accel", "kvm"}, {"-cpu", "host"}, {"-smp", "3"}, {"-m", "1024M"}, {"-kernel", "/k"}, {"-initrd", "/i"},
		{"-append", "console=ttyS0 rw quiet"}, {"-action", "reboot=shutdown,panic=shutdown"},
		{"-drive", "if=none,id=disk,format=qcow2,cache=writeback,discard=unmap,backing.file.locking=off,file=/a,,b/disk"},
		{"-drive", "if=none,id=modules,format=raw,readonly=on,file=/m"},
		{"-netdev", "tap,id=link,script=no,downscript=no,ifname=tap0"},
		{"-device", "virtio-net-pci,netdev=link,mac=52:54:00:01:02:03"},
	} {
		if !has(args, want...) {
			t.Errorf("%q are not in %q", want, args)
		}
	}
	// The first disk is the one that the initrd takes for the root.
	first, second := "virtio-blk-pci,drive=disk,write-cache=on", "virtio-blk-pci,drive=modules"
	if i := slices.Index(args, first); i < 0 || i > slices.Index(args, second) {
		t.Errorf("the order of the disks is not kept: %q", args)
	}
}

func TestArgsOfATrial(t *testing.T) {
	args := Hardware{Accel: TCG, Memory: 256, CPUs: 1, Kernel: "/k", Initrd: "/i"}.Args()
	if !has(args, "-accel", "tcg") || has(args, "-cpu", "host") {
		t.Errorf("%q", args)
	}
	if slices.Contains(args, "-drive") || slices.Contains(args, "-netdev") {
		t.Errorf("%q", args)
	}
}

// try tries a program of the test's own in place of QEMU.
func try(t *testing.T, cache, name, script string) (TrialResult, error) {
	t.Helper()
	return tryFor(t, time.Minute, cache, name, script)
}

func tryFor(t *testing.T, limit time.Duration, cache, name, script string) (TrialResult, error) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return Try(t.Context(), cache, Trial{Name: name, Program: program, Marker: "it works", Limit: limit})
}

func TestTry(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		limit  time.Duration
		works  bool
		why    string
	}{
		"works":         {"echo it works", time.Minute, true, "a kernel started and ended in "},
		"fails":         {"echo 'failed to set MSR' >&2; exit 1", time.Minute, false, `"failed to set MSR"`},
		"says nothing":  {"exit 0", time.Minute, false, "did not get to its first program"},
		"hangs":         {"echo Probing; sleep 4712 & wait", time.Second, false, "did not come to its end within 1s"},
		"hangs at last": {"echo it works; while :; do sleep 4712; done", time.Second, false, "did not come to its end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := tryFor(t, tc.limit, t.TempDir(), "k", tc.script)
			if err != nil || v.Works != tc.works || !strings.Contains(v.Why, tc.why) {
				t.Errorf("%+v, %v, want works %t and %q", v, err, tc.works, tc.why)
			}
		})
	}
	t.Run("nothing is left", func(t *testing.T) {
		if _, err := tryFor(t, time.Second, t.TempDir(), "k", "sleep 4713 & sleep 4713"); err != nil {
			t.Fatal(err)
		}
		left, err := process.Mentioning("\x004713\x00")
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a\nb\n": "b", "a\r\nb \r\n\n": "b", strings.Repeat("x", 300): strings.Repeat("x", 200),
	} {
		if got := lastLine(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestTryRemembers(t *testing.T) {
	cache := t.TempDir()
	first, err := try(t, cache, "k", "echo it works")
	if err != nil || !first.Works {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := try(t, cache, "k", "exit 1")
	if err != nil || again != first {
		t.Errorf("the second time: %+v, %v, want %+v", again, err, first)
	}
	other, err := try(t, cache, "another kernel", "exit 1")
	if err != nil || other.Works {
		t.Errorf("another kernel: %+v, %v, want one that does not work", other, err)
	}
	if v, ok := Remembered(cache, "k"); ok {
		t.Errorf("the other's result counts for the first: %+v", v)
	}
	// A result of another boot says nothing.
	file := supportFile(cache)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	foreign := strings.Replace(string(text), other.BootID, "another boot", 1)
	if err := os.WriteFile(file, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if v, ok := Remembered(cache, "another kernel"); ok {
		t.Errorf("a result of another boot counts: %+v", v)
	}
}

func TestTryRecordsNothingWhenTheCallerGoes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cache := t.TempDir()
	if v, err := Try(ctx, cache, Trial{Name: "k", Program: "/bin/true", Limit: time.Minute}); err == nil {
		t.Errorf("%+v", v)
	}
	if v, ok := Remembered(cache, "k"); ok {
		t.Errorf("%+v is remembered", v)
	}
}
