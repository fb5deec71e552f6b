package nodelogs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/testing/notregular"
)

// tree makes log folders beside a secret, with links and a pipe.
func tree(t testing.TB) (files Files, top string) {
	t.Helper()
	top = t.TempDir()
	logs, pods := filepath.Join(top, "log"), filepath.Join(top, "pods")
	for path, data := range map[string]string{
		"log/plain.log":     "plain",
		"log/unit/unit.log": "of a unit",
		"pods/p/0.log":      "of a pod",
		"secret/key":        "secret",
		"logs-beside/x":     "secret",
	} {
		full := filepath.Join(top, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte(data), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"log/inside":       "plain.log",
		"log/absolute":     filepath.Join(logs, "plain.log"),
		"log/pod.log":      filepath.Join(pods, "p/0.log"),
		"log/out":          "../secret/key",
		"log/out-absolute": filepath.Join(top, "secret/key"),
		"log/folder":       "../secret",
		"log/loop":         "loop",
		"log/gone":         "nosuch",
		"log/beside":       filepath.Join(top, "logs-beside"),
	} {
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(logs, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	return Files{logs, pods}, top
}

func TestNothingLeadsOut(t *testing.T) {
	files, top := tree(t)
	for name, want := range map[string]string{
		"/plain.log":         "plain",
		"plain.log":          "plain",
		"/unit/unit.log":     "of a unit",
		"/inside":            "plain",
		"/absolute":          "plain",
		"/pod.log":           "of a pod",
		"/unit/../plain.log": "plain",
	} {
		f, err := files.Open(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		data, err := io.ReadAll(f)
		if err != nil || string(data) != want {
			t.Errorf("%s is %q, want %q: %v", name, data, want, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"/out", "/out-absolute", "/folder/key", "/folder", "/beside/x", "/../secret/key", "/../../etc/passwd", "/loop",
		"/gone", "/pipe",
		"/unit/../../secret/key", "//..//secret/key", top + "/secret/key", "/\x00", "/plain.log/x",
	} {
		f, err := files.Open(name)
		if err == nil {
			data, _ := io.ReadAll(f)
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			t.Errorf("%s was opened: %q", name, data)
		}
	}
	if _, err := files.Open("/\x00"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name that no file can have: %v, want that it does not exist", err)
	}
	for _, name := range []string{"/out", "/folder/key", "/pipe"} {
		if _, err := files.Open(name); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v, want it to be forbidden", name, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	for _, seed := range []string{"/plain.log", "/../secret/key", "/folder/../secret/key", "/./out",
		"unit/../../secret/key", "/out-absolute"} {
		f.Add(seed)
	}
	files, _ := tree(f)
	f.Fuzz(func(t *testing.T, name string) {
		file, err := files.Open(name)
		if err != nil {
			return
		}
		defer file.Close()
		if info, err := file.Stat(); err != nil || info.IsDir() {
			return
		}
		if data, err := io.ReadAll(file); err == nil && string(data) == "secret" {
			t.Errorf("%q shows what is outside", name)
		}
	})
}

func TestParseQuery(t *testing.T) {
	for _, test := range []struct {
		query, want string // want is the arguments for the services, or part of the error
	}{
		{"query=kubelet", "--utc --no-pager --output=short-precise --unit=kubelet"},
		{"query=a&query=b.service", "--utc --no-pager --output=short-precise --unit=a --unit=b.service"},
		{"query=a&tailLines=5&boot=-1&pattern=x.*y",
			"--utc --no-pager --output=short-precise --pager-end --lines=5 --unit=a --grep=x.*y --boot=-1"},
		{"query=a&sinceTime=2026-01-02T03:04:05%2B01:00",
			"--utc --no-pager --output=short-precise --since=2026-1-2 02:4:5 --unit=a"},
		{"query=", "query is empty"},
		{"query=%20", "query is empty"},
		{"tailLines=5", "query is empty"},
		{"query=--file=x", "give the name of a service"},
		{"query=-D", "give the name of a service"},
		{"query=a;b", "query is empty"}, // the URL itself is at fault
		{"query=a%3Bb", "give the name of a service"},
		{"query=" + strings.Repeat("a", 257), "256 characters at most"},
		{"query=a&query=b&query=c&query=d&query=e", "names 5 services: give 4 at most"},
		{"query=/a&query=b", "a file and a service"},
		{"query=/a&query=/b", "several files"},
		{"query=/a&tailLines=1", "give no options"},
		{"query=a&tailLines=100001", "tailLines"},
		{"query=a&tailLines=x", "tailLines"},
		{"query=a&boot=1", "boot"},
		{"query=a&sinceTime=yesterday", "sinceTime"},
		{"query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z", "untilTime"},
		{"query=a&pattern=(", "regular expression"},
	} {
		values, _ := url.ParseQuery(test.query) // as net/http, which goes by what can be read
		q, err := ParseQuery(values)
		var got string
		if err != nil {
			got = err.Error()
		} else {
			got = strings.Join(q.journalArguments(q.Services), " ")
		}
		if err == nil && got != test.want || err != nil && !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.query, got, test.want)
		}
	}
	for query, want := range map[string]bool{"": false, "x=1": false, "query=": true, "query=a": true, "boot=0": true} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if Asks(values) != want {
			t.Errorf("%q asks: %t", query, !want)
		}
	}
}

// FuzzParseQuery holds what comes out to what may be handed to journalctl: no value of the caller's is
// an argument by itself.
func FuzzParseQuery(f *testing.F) {
	f.Add("query=kubelet&tailLines=3&pattern=a")
	f.Add("query=-D&pattern=--file=/etc/shadow&boot=-1&sinceTime=2026-01-01T00:00:00Z")
	f.Fuzz(func(t *testing.T, raw string) {
		values, _ := url.ParseQuery(raw)
		q, err := ParseQuery(values)
		if err != nil {
			return
		}
		known := []string{"--utc", "--no-pager", "--output=short-precise", "--pager-end", "--since=", "--until=",
			"--lines=", "--unit=", "--grep=", "--boot="}
		for _, arg := range q.journalArguments(q.Services) {
			ok := false
			for _, k := range known {
				ok = ok || arg == k || strings.HasSuffix(k, "=") && strings.HasPrefix(arg, k)
			}
			if !ok {
				t.Errorf("%q leads to the argument %q", raw, arg)
			}
		}
		for _, s := range q.Services {
			if strings.HasPrefix(s, "-") || strings.ContainsAny(s, "/\\ \x00") {
				t.Errorf("%q asks for a service %q", raw, s)
			}
		}
	})
}

// journalctl is a script in its place, which knows one unit.
func journalctl(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journalctl")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --field=_SYSTEMD_UNIT ]; then echo known.service; exit; fi\n%s\n",
		body)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnswersToQueries(t *testing.T) {
	files, _ := tree(t)
	logs := Logs{Files: files, Command: journalctl(t, `echo "journal: $*"`)}
	for query, want := range map[string]string{
		"query=known":          "journal: --utc --no-pager --output=short-precise --unit=known\n",
		"query=known.service":  "journal: --utc --no-pager --output=short-precise --unit=known.service\n",
		"query=plain.log":      "plain",
		"query=plain":          "plain",
		"query=unit":           "of a unit",
		"query=/unit/unit.log": "of a unit",
		"query=/out":           "\nerror getting log for /out: ",
		"query=/../secret/key": "\nlog not found for /../secret/key\n",
		"query=nosuch":         "\nlog not found for nosuch\n",
		"query=unit&tailLines=3": "\noptions present and query resolved to log files for [unit]\ntry without " +
			"specifying options\n",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParseQuery(values)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := logs.Write(t.Context(), &out, q); err != nil {
			t.Errorf("%s: %v", query, err)
		}
		if got := out.String(); got != want && !(strings.HasSuffix(want, ": ") && strings.HasPrefix(got, want)) {
			t.Errorf("%s:\n%s", query, cmp.Diff(want, got))
		}
	}
}

// gone is a reader that went away.
type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestJournalEndsWithItsReader(t *testing.T) {
	files, _ := tree(t)
	logs := Logs{Files: files, Command: journalctl(t, "while echo line; do sleep 0.01; done")}
	began := time.Now()
	err := logs.Write(t.Context(), gone{}, &Query{Services: []string{"known"}})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the error is %v, want the reader's", err)
	}
	if took := time.Since(began); took > queryTimeout/2 {
		t.Errorf("journalctl went on for %v after its reader had gone", took)
	}
}

func TestNothingButFilesAndFoldersIsOpened(t *testing.T) {
	logs := t.TempDir()
	if err := os.Symlink("special", filepath.Join(logs, "link")); err != nil {
		t.Fatal(err)
	}
	notregular.Each(t, filepath.Join(logs, "special"), func(t *testing.T) {
		for _, name := range []string{"/special", "/link"} {
			if _, err := (Files{logs}).Open(name); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: %v, want it to be forbidden", name, err)
			}
		}
	})
}
