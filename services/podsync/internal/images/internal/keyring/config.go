package keyring

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// maxFile bounds a docker configuration file of the node.
const maxFile = 10 << 20

// entry is one registry's entry of a docker configuration.
type entry struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Email    string `json:"email"`
	// Auth is base64 of "username:password" and wins over both.
	Auth string `json:"auth"`
}

// parse reads a docker configuration: the form of config.json, which has the registries
// under "auths", or the older form of .dockercfg, which is the registries.
func parse(data []byte, old bool) (map[string]Auth, error) {
	entries := map[string]entry{}
	var err error
	if old {
		err = json.Unmarshal(data, &entries)
	} else {
		outer := struct {
			Auths *map[string]entry `json:"auths"`
		}{&entries}
		err = json.Unmarshal(data, &outer)
	}
	if err != nil {
		// The decoder's words may quote what it read, which may be a password.
		return nil, errors.New("it is not the JSON of a docker configuration")
	}
	auths := map[string]Auth{}
	for registry, e := range entries {
		a := Auth{Username: e.Username, Password: e.Password, Email: e.Email}
		if e.Auth != "" {
			if a.Username, a.Password, err = decodeAuth(e.Auth); err != nil {
				return nil, fmt.Errorf("auth of registry %q: %w", registry, err)
			}
		}
		auths[registry] = a
	}
	return auths, nil
}

func decodeAuth(field string) (username, password string, err error) {
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(field), "=") {
		encoding = base64.StdEncoding
	}
	text, err := encoding.DecodeString(field)
	if err != nil {
		return "", "", errors.New("it is not base64")
	}
	username, password, ok := strings.Cut(string(text), ":")
	if !ok {
		return "", "", errors.New("it must be base64 of username:password")
	}
	return username, password, nil
}

// FromSecrets returns the keyring of a pod's imagePullSecrets. Secrets of other types
// are passed over, as are those without their key; one with broken content is an error.
func FromSecrets(secrets []v1.Secret) (*Keyring, error) {
	k := &Keyring{}
	for i := range secrets {
		s := &secrets[i]
		var data []byte
		switch s.Type {
		case v1.SecretTypeDockerConfigJson:
			data = s.Data[v1.DockerConfigJsonKey]
		case v1.SecretTypeDockercfg:
			data = s.Data[v1.DockerConfigKey]
		}
		if len(data) == 0 {
			continue
		}
		auths, err := parse(data, s.Type == v1.SecretTypeDockercfg)
		if err != nil {
			return nil, fmt.Errorf("image pull secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		k.Add(Owner{Secret, s.Namespace, s.Name, string(s.UID)}, auths)
	}
	return k, nil
}

// FromNode returns the keyring of the node itself: the first docker configuration found
// in the kubelet's places, which are its root folder, the working folder, the home
// folder's and the root's .docker. None there is an empty keyring.
func FromNode(rootDir string) (*Keyring, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/" // a service may have none, and the root is searched anyway
	}
	k := &Keyring{}
	for _, place := range []struct {
		folders []string
		name    string
		old     bool
	}{
		{[]string{rootDir, ".", filepath.Join(home, ".docker"), "/.docker"}, "config.json", false},
		{[]string{rootDir, ".", home, "/"}, ".dockercfg", true},
	} {
		for _, folder := range place.folders {
			if folder == "" {
				continue
			}
			path := filepath.Join(folder, place.name)
			data, err := readFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var auths map[string]Auth
			if err == nil {
				auths, err = parse(data, place.old)
			}
			if err != nil {
				return nil, fmt.Errorf("registry credentials of the node in %s: %w", path, err)
			}
			k.Add(Owner{}, auths)
			return k, nil
		}
	}
	return k, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxFile)
	}
	return os.ReadFile(path)
}
