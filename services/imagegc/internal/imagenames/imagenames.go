// Package imagenames compares the names of images, however they are spelled.
//
// It knows neither the bus nor the runtime, so that what it does can be compared with the kubelet.
package imagenames

import (
	"strings"

	"github.com/microlet/microlet/services/internal/imageref"
)

// Set is a set of image names, as Normal makes them.
type Set map[string]bool

// Add adds a name, in any spelling.
func (s Set) Add(name string) { s[Normal(name)] = true }

// Has reports whether a name, in any spelling, is among them.
func (s Set) Has(name string) bool { return s[Normal(name)] }

// Normal is the full spelling of an image's name, as the runtime has it: with the registry, and with a tag or digest.
// What is no name, such as an image's ID, stays as it is. Of a name with both, the digest counts, as with the runtime.
func Normal(name string) string {
	name = strings.TrimSpace(name)
	if id, ok := imageref.ID(name); ok {
		return id
	}
	named, err := imageref.ParseNormalized(name)
	if err != nil {
		return name
	}
	return named.Resolved().String()
}
