package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// entry is a file, folder or symbolic link of a layer.
type entry struct {
	path    string // without a leading slash
	mode    int64
	uid     int
	content []byte // of a file
	link    string // the target of a symbolic link
	dir     bool
}

func file(path string, mode int64, content []byte) entry {
	return entry{path: path, mode: mode, content: content}
}

func folder(path string, mode int64) entry { return entry{path: path, mode: mode, dir: true} }

func link(path, target string) entry { return entry{path: path, mode: 0o777, link: target} }

// archive writes the entries as a tar file that depends on nothing else: they
// are sorted, all times are the epoch, and missing parents are added.
func archive(entries []entry) ([]byte, error) {
	byPath := map[string]entry{}
	for _, e := range entries {
		if e.path == "" || strings.HasPrefix(e.path, "/") || path.Clean(e.path) != e.path {
			return nil, fmt.Errorf("make layer: path %q: it must be clean and without a leading slash", e.path)
		}
		if _, ok := byPath[e.path]; ok {
			return nil, fmt.Errorf("make layer: path %q is there twice", e.path)
		}
		byPath[e.path] = e
	}
	for _, e := range entries {
		for dir := path.Dir(e.path); dir != "."; dir = path.Dir(dir) {
			if _, ok := byPath[dir]; !ok {
				byPath[dir] = folder(dir, 0o755)
			}
		}
	}
	names := make([]string, 0, len(byPath))
	for name := range byPath {
		names = append(names, name)
	}
	slices.Sort(names)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range names {
		e := byPath[name]
		h := &tar.Header{Name: name, Mode: e.mode, Uid: e.uid, Gid: e.uid, Format: tar.FormatPAX}
		switch {
		case e.dir:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(e.content))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("make layer: %s: %w", name, err)
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, fmt.Errorf("make layer: %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return buf.Bytes(), nil
}

func layer(entries []entry) (v1.Layer, error) {
	text, err := archive(entries)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return l, nil
}
