// Package golden compares generated text with a file in the repository, such as a documentation page.
//
// A test that uses it has the flag -update, which writes the file instead.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the files that show what the code makes")

// Check fails the test if a file is not what the code makes, and shows what differs. With -update it writes
// the file.
func Check(t testing.TB, file, made string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), made); diff != "" {
		t.Errorf("%s is not what the code makes; if that is meant, write it with: go test -run '^%s$' -update (- file, "+
			"+ code)\n%s", file, t.Name(), diff)
	}
}
