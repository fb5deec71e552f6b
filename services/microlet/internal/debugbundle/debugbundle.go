// Package debugbundle writes what a report about the node agent needs into one archive, without secrets.
package debugbundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

const (
	// folder is the one that the archive unpacks to.
	folder = "microlet-debug"
	// maxFile bounds what one source gives. The beginning is kept: what says what it is stands there.
	maxFile = 2 << 20
	// margin is more than a secret is long: one that the end of a file cuts off is found whole.
	margin = 64 << 10
	// sourceTimeout bounds one source, which may be a process that hangs.
	sourceTimeout = 10 * time.Second
	// missingFile says which sources gave nothing, and why.
	missingFile = "missing.txt"
)

// Source is one file of the archive.
type Source struct {
	// Name is the file's path in the archive, such as "status.json".
	Name string
	// Collect returns the content.
	Collect func(ctx context.Context) ([]byte, error)
}

// Write writes the archive, a tar.gz, and returns the names of the sources that gave nothing. The archive says why. The
// error is about the archive itself.
func Write(ctx context.Context, to io.Writer, sources []Source, now time.Time) (missing []string, err error) {
	zipped := gzip.NewWriter(to)
	archive := tar.NewWriter(zipped)
	var why strings.Builder
	add := func(name string, data []byte) error {
		header := &tar.Header{
			Name: path.Join(folder, name), Mode: 0o600, Size: int64(len(data)), ModTime: now, Typeflag: tar.TypeReg,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(data)
		return err
	}
	for _, s := range sources {
		data, err := collect(ctx, s)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			missing = append(missing, s.Name)
			fmt.Fprintf(&why, "%s: %s\n", s.Name, Scrub([]byte(err.Error())))
			continue
		}
		if err := add(s.Name, data); err != nil {
			return nil, fmt.Errorf("write %s: %w", s.Name, err)
		}
	}
	if why.Len() > 0 {
		if err := add(missingFile, []byte(why.String())); err != nil {
			return nil, fmt.Errorf("write %s: %w", missingFile, err)
		}
	}
	return missing, errors.Join(archive.Close(), zipped.Close())
}

// collect asks a source, and removes what may be a secret.
func collect(ctx context.Context, s Source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	data, err := s.Collect(ctx)
	if err != nil {
		return nil, err
	}
	data = Scrub(data[:min(len(data), maxFile+margin)])
	if len(data) > maxFile {
		data = append(data[:maxFile:maxFile], []byte("\n(the rest is left out)\n")...)
	}
	return data, nil
}
