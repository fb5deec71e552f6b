package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// materialsType is the media type of a bill of materials, and, as that of the configuration, the artifact type of
	// what refers to an image: https://github.com/opencontainers/distribution-spec, "Listing Referrers".
	materialsType types.MediaType = "application/vnd.cyclonedx+json"

	// unprivileged is the user and the group of a container that names none: neither root nor a service. What starts a
	// service names the user of the service.
	unprivileged = "65534:65534"

	programPath = "usr/bin/microlet"
	licensePath = "usr/share/doc/microlet/copyright"
)

// machines are the architectures, and how a program says which one it is for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// labels are what https://github.com/opencontainers/image-spec/blob/main/annotations.md has.
func (in *input) labels() map[string]string {
	const image = "org.opencontainers.image."
	return map[string]string{
		image + "title":       "microlet",
		image + "description": "Kubernetes node agent of small processes",
		image + "url":         "https://github.com/microlet/microlet",
		image + "source":      "https://github.com/microlet/microlet",
		image + "licenses":    "Apache-2.0",
		image + "version":     in.version,
		image + "created":     in.date.Format("2006-01-02T15:04:05Z"),
	}
}

// image is that of one platform.
func (in *input) image(p platform) (v1.Image, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	layer, err := in.layer(p)
	if err != nil {
		return nil, err
	}
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: in.date}, CreatedBy: "microlet " + in.version},
	})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Created = p.arch, "linux", v1.Time{Time: in.date}
	file.Config = v1.Config{
		Entrypoint: []string{"/" + programPath}, Env: []string{"PATH=/usr/bin"}, Labels: in.labels(), User: unprivileged,
	}
	return mutate.ConfigFile(img, file)
}

// check refuses the program of another platform.
func (p *platform) check() error {
	file, err := elf.Open(p.program)
	if err != nil {
		return fmt.Errorf("-platform %s: %s: %w", p.arch, p.program, err)
	}
	defer func() { _ = file.Close() }() // it was read only
	if file.Machine != machines[p.arch] {
		return fmt.Errorf("-platform %s: %s is a program for %s", p.arch, p.program, file.Machine)
	}
	return nil
}

// layer has the files of a platform.
func (in *input) layer(p platform) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, folder := range []string{"usr/", "usr/bin/", "usr/share/", "usr/share/doc/", "usr/share/doc/microlet/"} {
		header := tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: 0o755, ModTime: in.date, Format: tar.FormatPAX}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
	}
	for _, f := range []struct {
		name, source string
		mode         int64
	}{{programPath, p.program, 0o755}, {licensePath, in.license, 0o644}} {
		data, err := os.ReadFile(f.source)
		if err != nil {
			return nil, err
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(data)), ModTime: in.date,
			Format: tar.FormatPAX}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// referrer is a bill of materials that refers to the image it is about.
func (p *platform) referrer(img v1.Image) (v1.Image, error) {
	data, err := os.ReadFile(p.materials)
	if err != nil {
		return nil, err
	}
	subject, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	base := mutate.MediaType(mutate.ConfigMediaType(empty.Image, materialsType), types.OCIManifestSchema1)
	bill, err := mutate.AppendLayers(base, static.NewLayer(data, materialsType))
	if err != nil {
		return nil, err
	}
	refers, ok := mutate.Subject(bill, *subject).(v1.Image)
	if !ok {
		return nil, errors.New("a bill of materials is no image")
	}
	return refers, nil
}
