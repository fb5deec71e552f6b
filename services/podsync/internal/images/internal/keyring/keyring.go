package keyring

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	// Email is a part of the hash only.
	Email string
	Owner Owner
}

// Hash is the kubelet's hash of a credential, by which it knows it again.
func (a Auth) Hash() string {
	// A string can always be encoded.
	data, _ := json.Marshal(struct { //nolint:gosec // it goes into the hash alone
		Username string `json:"username,omitempty"`
		Password string `json:"password,omitempty"`
		Email    string `json:"email,omitempty"`
	}{a.Username, a.Password, a.Email})
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// OwnerKind is the kind of an Owner.
type OwnerKind string

// The kinds. The node's own credentials have none: every pod may use them.
const (
	Secret         OwnerKind = "Secret"
	ServiceAccount OwnerKind = "ServiceAccount"
)

// Owner is the object that a credential comes from.
type Owner struct {
	Kind                 OwnerKind
	Namespace, Name, UID string
}

// Keyring holds credentials by what they are good for. Its zero value is empty.
type Keyring struct {
	// creds by "host[:port][/path]"; keys are its keys, more specific ones first.
	creds map[string][]Auth
	keys  []string
}

// Add adds the credentials of one owner by the registry, or the part of it, that they are for. What is no name of a
// registry is left out.
func (k *Keyring) Add(owner Owner, auths map[string]Auth) {
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
		auth := auths[registry]
		auth.Owner = owner
		k.creds[key] = append(k.creds[key], auth)
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
		if Match(key, repository) {
			found = append(found, k.creds[key]...)
		}
	}
	if len(found) == 0 && isDefault(repository) {
		found = k.creds[defaultRegistry]
	}
	return slices.Clone(found)
}

// Match reports whether credentials for key, such as "*.example:5000/team", are for this repository.
func Match(key, repository string) bool {
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
