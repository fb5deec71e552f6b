package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/microlet/internal/debugbundle/bundletest"
)

// asJournalctl has a script stand in for journalctl.
func asJournalctl(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "journalctl")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

// A report about an agent that does not run is written, and ends with a code that a script notices.
func TestBundleWithoutAnAgent(t *testing.T) {
	asJournalctl(t, `echo "2026-01-01T00:00:00 node microlet[7]: password=hunter2 $*"`)
	for name, args := range map[string][]string{
		"to a file":              {"-o", filepath.Join(t.TempDir(), "report.tar.gz")},
		"to the standard output": {"-o", "-"},
	} {
		out, err := execute(t, append([]string{"debug", "bundle", "--runtime-dir=" + t.TempDir()}, args...)...)
		var exit service.ExitError
		if !errors.As(err, &exit) || exit.Code != 3 || !strings.Contains(err.Error(), "lacks status.json and pods.json") {
			t.Errorf("%s: %v", name, err)
		}
		archive := []byte(out)
		if args[1] != "-" {
			if archive, err = os.ReadFile(args[1]); err != nil {
				t.Fatal(err)
			}
		}
		files := bundletest.Read(t, bytes.NewReader(archive))
		journal := files["machine/journal.log"]
		if !strings.Contains(journal, "--unit=microlet.service") || strings.Contains(journal, "hunter2") {
			t.Errorf("%s: the journal is %q; %s", name, journal, files["missing.txt"])
		}
		if files["machine/dmesg.txt"] == "" && !strings.Contains(files["missing.txt"], "machine/dmesg.txt: ") {
			t.Errorf("%s: no kernel log and no reason: %s", name, files["missing.txt"])
		}
	}
}

// Of a long journal the archive has what happened last, and nothing of a key whose beginning is left out.
func TestBundleHasTheEndOfALongJournal(t *testing.T) {
	asJournalctl(t, `echo "-----BEGIN PRIVATE KEY-----"
echo hunter2
head -c 5000 /dev/zero | tr '\0' k
echo "-----END PRIVATE KEY-----"
yes "$(head -c 700 /dev/zero | tr '\0' y)" | head -n `+fmt.Sprint(journalKept/701)+`
echo "the end"`)
	text, err := readJournal(t.Context())
	if err != nil || len(text) > journalKept || !strings.HasSuffix(string(text), "y\nthe end\n") ||
		strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "kkk") {
		t.Errorf("%d bytes, from %.20q to %q, %v", len(text), text, text[max(0, len(text)-20):], err)
	}
}

// Without a journal a report has the reason in its place.
func TestBundleWithoutAJournal(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":                           "the journal has no line of microlet.service",
		"echo no such journal >&2; exit 1": "no such journal",
	} {
		asJournalctl(t, script)
		if text, err := readJournal(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", script, text, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if text, err := readJournal(t.Context()); err == nil || !strings.Contains(err.Error(), "journalctl: ") {
		t.Errorf("without the program: %q, %v", text, err)
	}
}

// Of a long log the end is kept, in whole lines.
func TestNewest(t *testing.T) {
	long := strings.Repeat("x", kernelLogKept) + "\nthe end\n"
	for text, want := range map[string]string{"short\n": "short\n", long: "the end\n"} {
		if got := string(newest([]byte(text), kernelLogKept)); got != want {
			t.Errorf("%.20q: %.20q", text, got)
		}
	}
}
