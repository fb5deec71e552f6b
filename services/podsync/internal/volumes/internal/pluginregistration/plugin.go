package pluginregistration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// maxName bounds a plugin's name. A driver's name has at most 63 bytes, a resource's name at most 317.
	maxName = 317
	// maxWord bounds a type and a version.
	maxWord = 63
	// maxVersions bounds the versions that one plugin names.
	maxVersions = 32
	// maxEndpoint is what the kernel takes as a path. An address of a socket is shorter, 107 bytes, but endpoints are
	// connected to by descriptor.
	maxEndpoint = unix.PathMax - 1
)

// Plugin is what a plugin says of itself.
type Plugin struct {
	// Name is the driver's or the resource's.
	Name string
	// Endpoint is the absolute path of the socket that serves the plugin's own API.
	Endpoint string
	// Versions are those of its own API.
	Versions []string
}

// Handler takes the plugins of one type. It gets calls of several plugins at once, and for each plugin one after the
// other: Validate, Register, Deregister. Each call has a deadline.
type Handler interface {
	// Validate says why the plugin cannot be used. The plugin gets the error.
	Validate(ctx context.Context, p Plugin) error
	// Register takes a plugin that Validate let pass. The plugin gets the error.
	Register(ctx context.Context, p Plugin) error
	// Deregister takes back a plugin that Register was called for, also if that failed.
	Deregister(ctx context.Context, p Plugin)
}

// pluginOf checks what the plugin behind a socket below root answered.
func pluginOf(info *registerapi.PluginInfo, root, socket string) (Plugin, error) {
	p := Plugin{Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}
	if p.Endpoint == "" {
		p.Endpoint = socket
	}
	if len(p.Versions) > maxVersions {
		return p, fmt.Errorf("supported_versions has %d entries: at most %d are allowed", len(p.Versions), maxVersions)
	}
	errs := []error{checkWord("type", info.GetType(), maxWord), checkName(p.Name), checkEndpoint(p.Endpoint, root)}
	for _, v := range p.Versions {
		errs = append(errs, checkWord("supported_versions", v, maxWord))
	}
	return p, errors.Join(errs...)
}

func checkWord(field, value string, most int) error {
	switch {
	case value == "":
		return fmt.Errorf("%s is empty", field)
	case len(value) > most:
		return fmt.Errorf("%s has %d bytes: at most %d are allowed", field, len(value), most)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unprintable):
		return fmt.Errorf("%s is %q: it must be printable and without spaces", field, value)
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }

// checkName also refuses what would climb, because names become names of folders.
func checkName(name string) error {
	if err := checkWord("name", name, maxName); err != nil {
		return err
	}
	if !filepath.IsLocal(name) || filepath.Clean(name) != name || name == "." {
		return fmt.Errorf("name is %q: it must not be a path that climbs", name)
	}
	return nil
}

func checkEndpoint(endpoint, root string) error {
	if len(endpoint) > maxEndpoint {
		return fmt.Errorf("endpoint has %d bytes: at most %d are allowed", len(endpoint), maxEndpoint)
	}
	below, err := filepath.Rel(root, endpoint)
	if err != nil || !filepath.IsAbs(endpoint) || filepath.Clean(endpoint) != endpoint || below == "." ||
		!filepath.IsLocal(below) || strings.ContainsRune(endpoint, 0) {
		return fmt.Errorf("endpoint is %q: it must be the clean path of a socket below %s", endpoint, root)
	}
	return nil
}
