package main

import (
	"regexp"
	"strings"
)

// described is what git describe says: a tag, the commits since then, and whether files differ from the commit.
var described = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-((?:alpha|beta|rc)[0-9A-Za-z.]*))?(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?$`)

// others are characters that a version of a deb or an rpm may not have.
var others = regexp.MustCompile(`[^0-9A-Za-z.]+`)

// packageVersion is a version that sorts for dpkg and rpm as it does for Go: a release candidate before its release,
// commits after a tag behind it. What is no version, such as a commit of a checkout without tags, sorts before all.
func packageVersion(version string) string {
	m := described.FindStringSubmatch(version)
	if m == nil {
		return "0~" + strings.Trim(others.ReplaceAllString(version, "."), ".")
	}
	v := m[1]
	if m[2] != "" {
		v += "~" + m[2]
	}
	if m[3] != "" {
		v += "+" + m[3] + "." + m[4]
	}
	if m[5] != "" {
		v += "+dirty"
	}
	return v
}
