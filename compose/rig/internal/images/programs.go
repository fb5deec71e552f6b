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
const programsFormat = "3"

// buildPrograms returns the path of an OCI layout below cache that holds an image a program, and makes it if it is not
// there. The programs are paths of static executables, by the names of their images; each is the entry point of its
// image. What is in the file base, a layer, is below each of them; "" is nothing.
func buildPrograms(cache, kind, base string, programs map[string]string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, programsFormat, base)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		// The folder of a built program names its content.
		_, _ = fmt.Fprintln(h, name, filepath.Base(filepath.Dir(programs[name])))
	}
	return makeLayout(filepath.Join(cache, "images", kind+"-"+hex.EncodeToString(h.Sum(nil))[:16]),
		func() (map[string]v1.Image, error) {
			var below []v1.Layer
			if base != "" {
				l, err := tarball.LayerFromFile(base)
				if err != nil {
					return nil, fmt.Errorf("read layer %s: %w", base, err)
				}
				below = append(below, l)
			}
			made := map[string]v1.Image{}
			for name, path := range programs {
				text, err := os.ReadFile(path)
				if err != nil {
					return nil, fmt.Errorf("make image %s: %w", name, err)
				}
				program := filepath.Base(path)
				own, err := layer([]entry{file("usr/local/bin/"+program, 0o755, text), folder("tmp", 0o1777)})
				if err != nil {
					return nil, err
				}
				made[name], err = imageOf(append(slices.Clone(below), own),
					v1.Config{Entrypoint: []string{program}, Env: []string{pathVariable}})
				if err != nil {
					return nil, err
				}
			}
			return made, nil
		})
}
