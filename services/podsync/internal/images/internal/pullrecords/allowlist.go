package pullrecords

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/microlet/microlet/services/internal/imageref"
)

// allowlist are the images that every pod may use: names without tag and digest, and prefixes that end with a slash.
type allowlist struct {
	names    sets.Set[string]
	prefixes []string
}

// newAllowlist reads preloadedImagesVerificationAllowlist. Its errors are the kubelet's.
func newAllowlist(patterns []string) (allowlist, error) {
	l := allowlist{names: sets.Set[string]{}}
	for _, pattern := range patterns {
		if err := l.add(pattern); err != nil {
			return allowlist{}, fmt.Errorf("invalid image pattern in `preloadedImagesVerificationAllowlist`: %w", err)
		}
	}
	return l, nil
}

func (l *allowlist) add(pattern string) error {
	if pattern != strings.TrimSpace(pattern) {
		return fmt.Errorf("leading/trailing spaces are not allowed: %s", pattern)
	}
	name, isPrefix := pattern, strings.HasSuffix(pattern, "/*")
	if isPrefix {
		name = strings.TrimSuffix(pattern, "*")
	}
	switch {
	case name == "":
		return fmt.Errorf("the supplied pattern is too short: %s", pattern)
	case strings.Contains(name, "*"):
		return fmt.Errorf("not a valid wildcard pattern, only patterns ending with '/*' are allowed: %s", pattern)
	case name == "/":
		return errors.New("at least registry hostname is required")
	case isPrefix:
		l.prefixes = append(l.prefixes, name)
		return nil
	}
	repository, err := repositoryOf(name)
	if err != nil {
		return fmt.Errorf("failed to parse as an image name: %w", err)
	}
	if repository != name {
		return fmt.Errorf("neither tag nor digest is accepted in an image reference: %s", pattern)
	}
	l.names.Insert(name)
	return nil
}

func (l *allowlist) has(image string) bool {
	name, err := repositoryOf(image)
	if err != nil {
		name = image
	}
	if l.names.Has(name) {
		return true
	}
	for _, prefix := range l.prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// repositoryOf returns an image's name as the user wrote it, without tag and digest.
func repositoryOf(image string) (string, error) {
	parsed, err := imageref.Parse(image)
	if err != nil {
		return "", err
	}
	return parsed.Name(), nil
}
