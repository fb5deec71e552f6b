package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// failing is a test of which only the failure counts.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Errorf(format string, args ...any) { f.said = fmt.Sprintf(format, args...) }

func (f *failing) Fatal(args ...any) {
	f.said = fmt.Sprint(args...)
	runtime.Goexit()
}

// check returns how Check fails.
func check(t *testing.T, file, made string) string {
	test := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Check(test, file, made)
	}()
	<-done
	return test.said
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	if said := check(t, file, "new\n"); !strings.Contains(said, "no such file") {
		t.Errorf("a file that is not there: %q", said)
	}
	if err := os.WriteFile(file, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := check(t, file, "new\n")
	for _, want := range []string{file + " is not what the code makes", "go test -run '^TestCheck$' -update", "old",
		"new"} {
		if !strings.Contains(said, want) {
			t.Errorf("a file that is old: %q, want %q in it", said, want)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "old\n" {
		t.Errorf("without -update the file is %q, %v", text, err)
	}
	*update = true
	said = check(t, file, "new\n")
	*update = false
	if text, err := os.ReadFile(file); said != "" || err != nil || string(text) != "new\n" {
		t.Errorf("with -update: %q, the file is %q, %v", said, text, err)
	}
	if said := check(t, file, "new\n"); said != "" {
		t.Errorf("a file that is what the code makes: %q", said)
	}
}
