// Package imageref takes the names of images apart, as github.com/distribution/reference does, with the same errors.
//
// That package compiles regular expressions before main, half a megabyte in every process of the node. A test compares
// the two.
package imageref

import (
	"errors"
	"fmt"
	"strings"
)

const (
	// maxPath bounds a repository's name without its registry.
	maxPath = 255
	maxTag  = 128
	// idLength is that of an image's ID, without its algorithm.
	idLength = 64

	defaultTag    = "latest"
	defaultDomain = "docker.io"
	// legacyDomain is another name of defaultDomain.
	legacyDomain   = "index.docker.io"
	officialPrefix = "library/"
)

// The errors of names that cannot be read.
var (
	errFormat            = errors.New("invalid reference format")
	errUppercase         = errors.New("repository name must be lowercase")
	errEmpty             = errors.New("repository name must have at least one component")
	errTooLong           = fmt.Errorf("repository name must not be more than %v characters", maxPath)
	errDigestFormat      = errors.New("invalid checksum digest format")
	errDigestLength      = errors.New("invalid checksum digest length")
	errDigestUnsupported = errors.New("unsupported digest algorithm")
)

// hexDigits are how many each algorithm has.
var hexDigits = map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}

// Reference is the name of an image. Parts that it does not have are empty.
type Reference struct{ Domain, Path, Tag, Digest string }

// Name is the repository, with its registry.
func (r Reference) Name() string {
	if r.Domain == "" {
		return r.Path
	}
	return r.Domain + "/" + r.Path
}

// String is the name in full.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// Resolved is what a runtime looks for: of a tag and a digest the digest counts, and without both it is latest.
func (r Reference) Resolved() Reference {
	switch {
	case r.Digest != "":
		r.Tag = ""
	case r.Tag == "":
		r.Tag = defaultTag
	}
	return r
}

// Parse takes a name apart as it is written.
func Parse(s string) (Reference, error) {
	r, ok := split(s)
	if !ok {
		if s == "" {
			return Reference{}, errEmpty
		}
		if _, ok := split(strings.ToLower(s)); ok {
			return Reference{}, errUppercase
		}
		return Reference{}, errFormat
	}
	if len(r.Path) > maxPath {
		return Reference{}, errTooLong
	}
	if r.Digest != "" {
		if err := checkDigest(r.Digest); err != nil {
			return Reference{}, err
		}
	}
	return r, nil
}

// ParseNormalized takes a name apart as Docker means it: with a registry, and docker.io's own images in library/.
func ParseNormalized(s string) (Reference, error) {
	if isID(s) {
		return Reference{}, fmt.Errorf("invalid repository name (%s), cannot specify 64-byte hexadecimal strings", s)
	}
	domain, rest := normalize(s)
	if path, _, _ := strings.Cut(rest, ":"); strings.ToLower(path) != path {
		return Reference{}, fmt.Errorf("invalid reference format: repository name (%s) must be lowercase", path)
	}
	return Parse(domain + "/" + rest)
}

// ID returns the ID of an image, with its algorithm, if s is one.
func ID(s string) (string, bool) {
	if isID(s) {
		return "sha256:" + s, true
	}
	return s, checkDigest(s) == nil
}

// normalize finds the registry that a name means, and what it calls the image.
func normalize(s string) (domain, rest string) {
	first, after, ok := strings.Cut(s, "/")
	if !ok {
		return defaultDomain, officialPrefix + s
	}
	switch {
	case first == legacyDomain:
		domain, rest = defaultDomain, after
	case first == "localhost", strings.ContainsAny(first, ".:"), strings.ToLower(first) != first:
		domain, rest = first, after
	default:
		domain, rest = defaultDomain, s
	}
	if domain == defaultDomain && !strings.Contains(rest, "/") {
		rest = officialPrefix + rest
	}
	return domain, rest
}

// split goes by the grammar alone: [domain/]path[:tag][@digest].
func split(s string) (r Reference, ok bool) {
	s, digest, digested := strings.Cut(s, "@")
	if digested && !isDigest(digest) {
		return r, false
	}
	r.Digest = digest
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
		if s, r.Tag = s[:i], s[i+1:]; !isTag(r.Tag) {
			return r, false
		}
	}
	if domain, path, ok := strings.Cut(s, "/"); ok && isDomain(domain) && isPath(path) {
		r.Domain, r.Path = domain, path
		return r, true
	}
	r.Path = s
	return r, isPath(s)
}

func isID(s string) bool { return len(s) == idLength && only(s, isLowerHex) }

func isTag(s string) bool {
	return s != "" && len(s) <= maxTag && isWord(s[0]) &&
		only(s[1:], func(c byte) bool { return isWord(c) || c == '.' || c == '-' })
}

// isDomain knows host names and IPv6 addresses in brackets, with and without a port.
func isDomain(s string) bool {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		address, port, ok := strings.Cut(rest, "]")
		return ok && address != "" && only(address, func(c byte) bool { return isHex(c) || c == ':' }) &&
			(port == "" || port[0] == ':' && isPort(port[1:]))
	}
	if host, port, ok := strings.Cut(s, ":"); ok {
		if s = host; !isPort(port) {
			return false
		}
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' ||
			!only(label, func(c byte) bool { return isAlphanumeric(c) || c == '-' }) {
			return false
		}
	}
	return true
}

func isPort(s string) bool { return s != "" && only(s, isDigit) }

// isPath knows components of lower-case letters and digits. Between these, there may be a dot, one or two underscores,
// or hyphens.
func isPath(s string) bool {
	for component := range strings.SplitSeq(s, "/") {
		if component == "" || !isLowerAlphanumeric(component[0]) {
			return false
		}
		for i := 0; i < len(component); {
			from := i
			for i < len(component) && !isLowerAlphanumeric(component[i]) {
				i++
			}
			if i > from && (i == len(component) || !isSeparator(component[from:i])) {
				return false
			}
			for i < len(component) && isLowerAlphanumeric(component[i]) {
				i++
			}
		}
	}
	return true
}

func isSeparator(s string) bool {
	return s == "." || s == "_" || s == "__" || strings.Trim(s, "-") == ""
}

// isDigest goes by the grammar, whatever the algorithm is.
func isDigest(s string) bool {
	algorithm, encoded, ok := strings.Cut(s, ":")
	if !ok || len(encoded) < 32 || !only(encoded, isHex) {
		return false
	}
	for part := range strings.FieldsFuncSeq(algorithm, func(c rune) bool { return strings.ContainsRune("-_+.", c) }) {
		if !isLetter(part[0]) || !only(part, isAlphanumeric) {
			return false
		}
	}
	return algorithm != "" && isAlphanumeric(algorithm[0]) && isAlphanumeric(algorithm[len(algorithm)-1]) &&
		!twice(algorithm)
}

// twice reports whether two separators of a digest's algorithm follow each other.
func twice(algorithm string) bool {
	for i := 1; i < len(algorithm); i++ {
		if !isAlphanumeric(algorithm[i-1]) && !isAlphanumeric(algorithm[i]) {
			return true
		}
	}
	return false
}

// checkDigest says what is wrong with a digest.
func checkDigest(s string) error {
	algorithm, encoded, ok := strings.Cut(s, ":")
	if !ok || algorithm == "" || encoded == "" {
		return errDigestFormat
	}
	digits, known := hexDigits[algorithm]
	switch {
	case !known && strings.ToLower(algorithm) != algorithm:
		return errDigestFormat
	case !known:
		return errDigestUnsupported
	case len(encoded) != digits:
		return errDigestLength
	case !only(encoded, isLowerHex):
		return errDigestFormat
	}
	return nil
}

// only reports whether a string has no other bytes.
func only(s string, is func(byte) bool) bool {
	for i := range len(s) {
		if !is(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool             { return '0' <= c && c <= '9' }
func isLower(c byte) bool             { return 'a' <= c && c <= 'z' }
func isLetter(c byte) bool            { return isLower(c | 0x20) }
func isAlphanumeric(c byte) bool      { return isDigit(c) || isLetter(c) }
func isLowerAlphanumeric(c byte) bool { return isDigit(c) || isLower(c) }
func isWord(c byte) bool              { return isAlphanumeric(c) || c == '_' }
func isLowerHex(c byte) bool          { return isDigit(c) || 'a' <= c && c <= 'f' }
func isHex(c byte) bool               { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
