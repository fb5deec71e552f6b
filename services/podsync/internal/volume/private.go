package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// reaches says why a pod may not have what is, or is to be made, at a path of the node: it is in own, the node agent's
// folder. An empty own keeps nothing from the pod. Admission has judged what the pod says; this follows the links
// before root makes anything there. It is the second wall: who swaps a link after it has been looked at gets to what
// the modes of files and the judging of peers guard.
func reaches(own, path string) error {
	if own == "" {
		return nil
	}
	if real, err := filepath.EvalSymlinks(own); err == nil {
		own = real
	}
	real, missing, err := existing(path)
	if err != nil {
		return err
	}
	if end := filepath.Join(real, missing); end == own || strings.HasPrefix(end, own+"/") {
		return fmt.Errorf("%s is in the node agent's own folder", path)
	}
	return nil
}

// existing resolves the links of as much of an absolute path as there is, and returns the rest of it.
func existing(path string) (real, missing string, err error) {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return real, strings.TrimPrefix(filepath.Clean(path), at), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == "/" || at == "." {
			return "", "", err
		}
	}
}
