package images

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// programsFormat is part of the cache key, as format is.
const programsFormat = "4"

// base is what is below the program of an image.
type base struct {
	key   string // names the content
	layer func() (v1.Layer, error)
}

// nothing is below a program that needs none of a system.
var nothing base

// fileBase is a layer in a file. The path names the content.
func fileBase(path string) base {
	return base{key: path, layer: func() (v1.Layer, error) {
		l, err := tarball.LayerFromFile(path)
		if err != nil {
			return nil, fmt.Errorf("read layer %s: %w", path, err)
		}
		return l, nil
	}}
}

// entriesBase is a layer of these entries.
func entriesBase(entries []entry) (base, error) {
	text, err := archive(entries)
	if err != nil {
		return base{}, err
	}
	sum := sha256.Sum256(text)
	return base{key: hex.EncodeToString(sum[:]), layer: func() (v1.Layer, error) { return layer(entries) }}, nil
}

// programImage is an image of one program.
type programImage struct {
	path string // of the static executable, which is the entry point
	base base
}

func (p programImage) make() (v1.Image, error) {
	var layers []v1.Layer
	if p.base.layer != nil {
		l, err := p.base.layer()
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	text, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	program := filepath.Base(p.path)
	own, err := layer([]entry{file("usr/local/bin/"+program, 0o755, text), folder("tmp", 0o1777)})
	if err != nil {
		return nil, err
	}
	return imageOf(append(layers, own), v1.Config{Entrypoint: []string{program}, Env: []string{pathVariable}})
}

// buildPrograms returns the path of an OCI layout below cache that holds these images, by their names, and makes it if
// it is not there.
func buildPrograms(cache, kind string, programs map[string]programImage) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, programsFormat)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		// The folder of a built program names its content.
		_, _ = fmt.Fprintln(h, name, programs[name].base.key, filepath.Base(filepath.Dir(programs[name].path)))
	}
	return makeLayout(filepath.Join(cache, "images", kind+"-"+hex.EncodeToString(h.Sum(nil))[:16]),
		func() (map[string]v1.Image, error) {
			made := map[string]v1.Image{}
			for name, program := range programs {
				var err error
				if made[name], err = program.make(); err != nil {
					return nil, fmt.Errorf("make image %s: %w", name, err)
				}
			}
			return made, nil
		})
}
