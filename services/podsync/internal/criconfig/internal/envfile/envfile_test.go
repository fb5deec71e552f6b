package envfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
)

func TestParse(t *testing.T) {
	const file = `
# a comment, with A='no'
  A='one'
B='two words' # a comment
MULTI='first
second'
EMPTY=''
BLANK= 'x'
HASH='#'
LITERAL='$A \n "q"'
C=''   
ODD'NAME='odd'
LAST='end'`
	for name, want := range map[string]string{
		"A": "one", "B": "two words", "MULTI": "first\nsecond", "EMPTY": "", "BLANK": "", "HASH": "#",
		"LITERAL": `$A \n "q"`, "LAST": "end", "ODD'NAME": "odd", "NONE": "",
	} {
		if got, err := Parse(file, name); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"A":             "line 1: there is no '='",
		"\nA ='x'":      "line 2: there is a blank before '='",
		"='x'":          "line 1: the variable has no name",
		"A=x":           "line 1: the value must stand in single quotes",
		"A=":            "line 1: the value must stand in single quotes",
		`A="x"`:         "line 1: the value must stand in single quotes",
		"A='x":          "line 1: the quote is never closed",
		"A='x'\r\r\n":   "line 1: there is something after the closing quote",
		"A='x'y":        "line 1: there is something after the closing quote",
		"M='1\n2'\nA=x": "line 3: the value must stand in single quotes",
	} {
		if _, err := Parse(text, "Z"); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if got, err := Parse("A='x'\nbroken", "A"); err != nil || got != "x" {
		t.Errorf("what stands after the variable matters: %q, %v", got, err)
	}
}

func TestReadStaysInTheVolume(t *testing.T) {
	dir := t.TempDir()
	volume := filepath.Join(dir, "volume")
	write := func(path string) error { return os.WriteFile(filepath.Join(dir, path), []byte("A='x'\n"), 0o600) }
	if err := errors.Join(os.MkdirAll(filepath.Join(volume, "sub"), 0o700), write("secret"), write("volume/sub/f"),
		os.Symlink("../secret", filepath.Join(volume, "out")), os.Symlink("sub/f", filepath.Join(volume, "in")),
		unix.Mkfifo(filepath.Join(volume, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{
		"sub/f":     true,
		"in":        true,
		"out":       false,
		"../secret": false,
		"pipe":      false,
		"sub":       false,
		"none":      false,
	} {
		got, err := new(Reader).Read(volume, path, "A")
		if (err == nil) != ok || ok && got != "x" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(volume, "big"), []byte("A='"+strings.Repeat("x", maxFile)+"'"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := new(Reader).Read(volume, "big", "A"); err == nil {
		t.Error("a file without bound was read")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"A='x'", "A='x'\nB='y\nz' # c", "=", "A", "'", "A='", "\r\n#\n A= 'b'", "A='x'\x00"} {
		f.Add(text, "A")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		got, err := Parse(text, name)
		if err != nil && got != "" {
			t.Fatalf("a value %q and an error %v", got, err)
		}
		if strings.Contains(got, "'") {
			t.Fatalf("the value %q has a quote, which ends it", got)
		}
	})
}

// TestReadOpensNothingElse: the container made what has the file's name.
func TestReadOpensNothingElse(t *testing.T) {
	volume := t.TempDir()
	if err := os.Symlink("f", filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	notregular.Each(t, filepath.Join(volume, "f"), func(t *testing.T) {
		for _, path := range []string{"f", "link"} {
			if _, err := new(Reader).Read(volume, path, "A"); !errors.Is(err, regularfile.ErrNotRegular) {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
}
