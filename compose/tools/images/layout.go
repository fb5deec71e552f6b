package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refName is by what a tool finds an image in a layout.
const refName = "org.opencontainers.image.ref.name"

// write writes the archive.
func write(in input) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(in.out), ".images-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	index, err := in.index()
	if err != nil {
		return err
	}
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	out, err := os.Create(in.out)
	if err != nil {
		return err
	}
	return errors.Join(archive(out, dir, in.date), out.Close())
}

// index is that of the layout: the image of all platforms under the version, and the bills of materials.
func (in *input) index() (v1.ImageIndex, error) {
	image := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	root := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var bills []mutate.IndexAddendum
	for _, p := range in.platforms {
		img, err := in.image(p)
		if err != nil {
			return nil, err
		}
		bill, err := p.referrer(img)
		if err != nil {
			return nil, fmt.Errorf("bill of materials for %s: %w", p.arch, err)
		}
		platform := v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}}
		image = mutate.AppendManifests(image, mutate.IndexAddendum{Add: img, Descriptor: platform})
		bills = append(bills, mutate.IndexAddendum{Add: bill, Descriptor: v1.Descriptor{ArtifactType: string(materialsType)}})
	}
	annotated, ok := mutate.Annotations(image, in.labels()).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("an index with annotations is no index")
	}
	named := v1.Descriptor{Annotations: map[string]string{refName: in.version}}
	root = mutate.AppendManifests(root, mutate.IndexAddendum{Add: annotated, Descriptor: named})
	return mutate.AppendManifests(root, bills...), nil
}

// archive writes the files of a folder in the order of their names, all with one date.
func archive(out *os.File, dir string, date time.Time) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := tar.Header{Name: name, ModTime: date, Format: tar.FormatPAX}
		if d.IsDir() {
			header.Typeflag, header.Name, header.Mode = tar.TypeDir, name+"/", 0o755
			return w.WriteHeader(&header)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		header.Typeflag, header.Mode, header.Size = tar.TypeReg, 0o644, int64(len(data))
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	return errors.Join(err, w.Close())
}
