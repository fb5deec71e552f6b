// Package nfsexport names exports of NFS servers.
//
// It takes a server and a path as a pod, a PersistentVolume or a manifest has them, and the sources in the kernel's
// list of mounts. An export that it names begins with a name or an address.
package nfsexport

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"unicode"

	v1 "k8s.io/api/core/v1"
)

var (
	errServer = errors.New(
		"must be the name or the IP address of a server: without '/' and white space, and not beginning with '-'")
	errPath = errors.New("must be an absolute path")
)

// CheckServer refuses what cannot be the name or the address of a server.
func CheckServer(server string) error {
	misfit := func(r rune) bool { return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if server == "" || strings.HasPrefix(server, "-") || strings.ContainsFunc(server, misfit) {
		return errServer
	}
	return nil
}

// CheckPath refuses a path that is not absolute, as the API server does.
func CheckPath(exported string) error {
	if !path.IsAbs(exported) {
		return errPath
	}
	return nil
}

// Of returns the export as mount(8) takes it.
func Of(source *v1.NFSVolumeSource) (string, error) {
	if err := CheckServer(source.Server); err != nil {
		return "", fmt.Errorf("nfs.server %q %w", source.Server, err)
	}
	if err := CheckPath(source.Path); err != nil {
		return "", fmt.Errorf("nfs.path %q %w", source.Path, err)
	}
	server := source.Server
	if address, err := netip.ParseAddr(server); err == nil && address.Is6() {
		server = "[" + server + "]"
	}
	return server + ":" + source.Path, nil
}

// Same reports whether the kernel's list of mounts has an export under this name. Kernels leave out slashes that have
// no meaning, some even that of "server:/".
func Same(listed, export string) bool {
	server, exported, found := strings.Cut(export, ":/")
	listedServer, listedPath, listedFound := strings.Cut(listed+"/", ":/")
	return found && listedFound && server == listedServer && path.Clean("/"+exported) == path.Clean("/"+listedPath)
}
