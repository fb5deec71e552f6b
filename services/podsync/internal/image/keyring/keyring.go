package keyring

import (
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
)

// defaultRegistry is the host under which credentials for docker.io are kept.
const defaultRegistry = "index.docker.io"

// Auth is a user's credential at a registry.
type Auth struct {
	Username, Password string
}

// Keyring holds credentials by what they are good for. Its zero value is empty.
type Keyring struct {
	// creds by "host[:port][/path]"; keys are its keys, more specific ones first.
	creds map[string][]Auth
	keys  []string
}

func (k *Keyring) add(auths map[string]Auth) {
	if k.creds == nil {
		k.creds = map[string][]Auth{}
	}
	registries := make([]string, 0, len(auths))
	for registry := range auths {
		registries = append(registries, registry)
	}
	slices.Sort(registries) // so that the order of two that mean the same is no accident
	for _, registry := range registries {
		key, ok := keyOf(registry)
		if !ok {
			continue
		}
		if _, known := k.creds[key]; !known {
			k.keys = append(k.keys, key)
		}
		k.creds[key] = append(k.creds[key], auths[registry])
	}
	slices.Sort(k.keys)
	slices.Reverse(k.keys) // "host/path" is before "host"
}

// keyOf turns the name of an entry, which docker writes in many ways, into host and
// path; false when it is no URL.
func keyOf(registry string) (string, bool) {
	if !strings.HasPrefix(registry, "https://") && !strings.HasPrefix(registry, "http://") {
		registry = "https://" + registry
	}
	u, err := url.Parse(registry)
	if err != nil {
		return "", false
	}
	p := u.Path
	if strings.HasPrefix(p, "/v1/") || strings.HasPrefix(p, "/v2/") {
		p = p[len("/v1"):] // the API's path, not the repository's
	}
	if p == "/" {
		p = ""
	}
	return u.Host + p, true
}

// Lookup returns the credentials for a repository, by its full name without tag and
// digest, such as "docker.io/library/busybox". Those to try first come first.
func (k *Keyring) Lookup(repository string) []Auth {
	var found []Auth
	for _, key := range k.keys {
		if match(key, repository) {
			found = append(found, k.creds[key]...)
		}
	}
	if len(found) == 0 && isDefault(repository) {
		found = k.creds[defaultRegistry]
	}
	return slices.Clone(found)
}

// match reports whether the credentials under key are for this repository.
func match(key, repository string) bool {
	k, err := url.Parse("https://" + key)
	if err != nil {
		return false
	}
	r, err := url.Parse("https://" + repository)
	if err != nil {
		return false
	}
	wantHost, wantPort := splitHost(k.Host)
	host, port := splitHost(r.Host)
	if wantPort != port || len(wantHost) != len(host) || !strings.HasPrefix(r.Path, k.Path) {
		return false
	}
	for i := range host {
		if ok, err := path.Match(wantHost[i], host[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitHost(host string) (labels []string, port string) {
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	return strings.Split(host, "."), port
}

// isDefault reports whether a repository is at docker.io, where names without a host are.
func isDefault(repository string) bool {
	host, _, hasPath := strings.Cut(repository, "/")
	switch {
	case host == "":
		return false
	case !hasPath, host == "docker.io", host == defaultRegistry:
		return true
	}
	return !strings.ContainsAny(host, ".:")
}
