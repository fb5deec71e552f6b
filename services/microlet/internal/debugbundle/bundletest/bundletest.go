// Package bundletest reads the archives of "microlet debug" for tests.
package bundletest

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
)

// folder is the one that all files of an archive are in.
const folder = "microlet-debug/"

// Read returns the files of an archive by their names in its folder.
func Read(t testing.TB, from io.Reader) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(from)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(header.Name, folder)
		if !ok {
			t.Errorf("%s is not in the folder %s", header.Name, folder)
		}
		files[name] = string(text)
	}
}
