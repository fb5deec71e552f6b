package kubeletconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"

	"github.com/microlet/microlet/services/internal/unreadable"
)

// loadFiles returns the defaulted configuration that the flags apply to, and what is wrong with all of the files. The
// configuration is nil if nothing can be said about it, since a file is not read at all.
func (f *Flags) loadFiles(from provenance, flagGates map[string]bool) (*kubeletv1beta1.KubeletConfiguration, error) {
	c, whole := baseWithoutFile(flagGates), true
	var wrong error
	if f.ConfigFile != "" {
		fromFile, err := loadFile(f.ConfigFile, from, flagGates)
		if whole = fromFile != nil; whole {
			c = fromFile
		}
		wrong = err
	}
	if f.ConfigDir != "" {
		merged, err := mergeDropIns(c, f.ConfigDir, from, flagGates)
		whole = whole && merged != nil
		c, wrong = merged, errors.Join(wrong, err)
	}
	if !whole {
		return nil, wrong
	}
	return c, wrong
}

// loadFile reads the file of --config. Relative paths in it start at its folder.
func loadFile(path string, from provenance, flagGates map[string]bool) (*kubeletv1beta1.KubeletConfiguration, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("make --config %q absolute: %w", path, err)
	}
	source := "file " + path
	d, wrong := readDocument("--config", source, path)
	if d == nil {
		return nil, wrong
	}
	from.merge(d.object, source)
	c := d.config
	setDefaults(&c, flagGates)
	fillEvictionHard(&c)
	from.takeZerosBack(d.object, asObject(c), source)
	for _, field := range pathFields(&c) {
		if *field != "" && !filepath.IsAbs(*field) {
			*field = filepath.Join(filepath.Dir(path), *field)
		}
	}
	return &c, wrong
}

func readDocument(flag, source, path string) (*document, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, unread(flag, path, err)
	}
	return decode(source, data)
}

// unread is the problem of a file or folder, which a flag names, that cannot be read.
func unread(flag, path string, err error) Problem {
	fault, remedy := unreadable.Why(err)
	return Problem{Field: flag, Value: path, Detail: fault, Remedy: remedy}
}

// mergeDropIns merges the *.conf files under dir over c in lexical order, as RFC 7396 merges JSON (KEP-3983): mappings
// key by key, lists replaced, and null takes a value away, so that the API's default applies. Relative paths in a
// drop-in start at the working directory, as the kubelet's do.
func mergeDropIns(c *kubeletv1beta1.KubeletConfiguration, dir string, from provenance,
	flagGates map[string]bool) (*kubeletv1beta1.KubeletConfiguration, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("make --config-dir %q absolute: %w", dir, err)
	}
	merged, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode configuration for merging: %w", err)
	}
	var wrong []error
	whole := true
	objects := map[string]map[string]any{} // by their source
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return unread("--config-dir", path, err)
		}
		if entry.IsDir() || filepath.Ext(entry.Name()) != ".conf" {
			return nil
		}
		source := "drop-in " + path
		d, err := readDocument("--config-dir", source, path)
		wrong = append(wrong, err)
		if d == nil {
			whole = false
			return nil // the next file may be wrong as well
		}
		from.merge(d.object, source)
		objects[source] = d.object
		if merged, err = jsonpatch.MergePatch(merged, d.json); err != nil {
			return fmt.Errorf("merge %s: %w", path, err)
		}
		return nil
	})
	if err != nil || !whole {
		return nil, errors.Join(append(wrong, err)...)
	}
	result := &kubeletv1beta1.KubeletConfiguration{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(merged, result); err != nil {
		return nil, errors.Join(append(wrong, fmt.Errorf("decode configuration merged from %s: %w", dir, err))...)
	}
	setDefaults(result, flagGates)
	for source, object := range objects {
		from.takeZerosBack(object, asObject(*result), source)
	}
	return result, errors.Join(wrong...)
}
