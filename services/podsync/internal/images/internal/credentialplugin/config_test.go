package credentialplugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// valid is a configuration of one plugin, cred.
const valid = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: cred
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.example:5000/team", "registry.example"]
  defaultCacheDuration: 10m
  args: [get, --now]
  env: [{name: REGION, value: north}]
`

// withTokens has a plugin that is given tokens.
const withTokens = valid + `  tokenAttributes:
    serviceAccountTokenAudience: registry
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [example/Role]
    optionalServiceAccountAnnotationKeys: [example/hint]
`

// write makes a file, and its folder.
func write(t *testing.T, path, data string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// bin is a folder with the plugin cred.
func bin(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "cred"), "#!/bin/sh\n"+script, 0o755)
	return dir
}

func load(t *testing.T, data string) (*Config, error) {
	t.Helper()
	return Load(write(t, filepath.Join(t.TempDir(), "c.yaml"), data, 0o600), bin(t, ""), true)
}

func TestLoad(t *testing.T) {
	c, err := load(t, withTokens)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Providers[0]
	if len(c.Providers) != 1 || p.DefaultCacheDuration.Duration != 10*time.Minute || len(p.MatchImages) != 2 ||
		p.Env[0].Value != "north" || p.TokenAttributes.ServiceAccountTokenAudience != "registry" {
		t.Errorf("got %+v", c)
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		if c, err := load(t, strings.Replace(valid, "io/v1\nkind", "io/"+version+"\nkind", 1)); err != nil ||
			c.Providers[0].Name != "cred" {
			t.Errorf("%s: %+v, %v", version, c, err)
		}
	}
}

// TestHashOfTheFiles: SHA-256 of each file's length, as 8 bytes, and content.
func TestHashOfTheFiles(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "a.json"), "{}", 0o600)
	_, err := read(path)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("a file without a kind: %v", err)
	}
	one, two := strings.Replace(valid, "name: cred", "name: b", 1), valid
	write(t, path, one, 0o600)
	first, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "z.yml"), two, 0o600)
	write(t, filepath.Join(dir, "ignored.txt"), "broken", 0o600)
	both, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if first.Hash == both.Hash || !strings.HasPrefix(both.Hash, "sha256:") || len(both.Hash) != 71 {
		t.Errorf("hashes are %s and %s", first.Hash, both.Hash)
	}
	if len(both.Providers) != 2 || both.Providers[0].Name != "b" || both.Providers[1].Name != "cred" {
		t.Errorf("the files are not in the order of their names: %+v", both.Providers)
	}
}

func TestRefusedConfigurations(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(withTokens, old, replacement, 1) }
	for _, test := range []struct{ config, want string }{
		{with("kubelet.config.k8s.io/v1\n", "kubelet.config.k8s.io/v2\n"), "no kind"},
		{with("kind: CredentialProviderConfig", "kind: KubeletConfiguration"), "no kind"},
		{with("  args:", "  argz:"), `unknown field "providers[0].argz"`},
		{with("k8s.io/v1\nkind", "k8s.io/v1beta1\nkind"), `unknown field "providers[0].tokenAttributes"`},
		{strings.Split(valid, "providers:")[0] + "providers: []\n", "at least 1 item in plugins is required"},
		{with("name: cred", "name: ../cred"), "provider name cannot contain '/'"},
		{with("name: cred", "name: a b"), "provider name cannot contain spaces"},
		{with("name: cred", "name: ."), "provider name cannot be '.'"},
		{with("name: cred", "name: .."), "provider name cannot be '..'"},
		{with("name: cred", "name: other"), "other did not exist"},
		{valid + strings.Split(valid, "providers:\n")[1], `duplicate provider name "cred"`},
		{with("  apiVersion: credentialprovider.kubelet.k8s.io/v1\n", ""), "providers.apiVersion: Required value"},
		{with("provider.kubelet.k8s.io/v1", "provider.kubelet.k8s.io/v3"),
			`providers.apiVersion: Unsupported value: "credentialprovider.kubelet.k8s.io/v3": supported values: ` +
				`"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1alpha1", ` +
				`"credentialprovider.kubelet.k8s.io/v1beta1"`},
		{with(`["*.example:5000/team", "registry.example"]`, "[]"), "at least 1 item in matchImages is required"},
		{with("*.example:5000/team", "a%zz"), "match image is invalid"},
		{with("  defaultCacheDuration: 10m\n", ""), "providers.defaultCacheDuration: Required value"},
		{with("10m", "-1s"), "must be greater than or equal to 0"},
		{with("serviceAccountTokenAudience: registry", `serviceAccountTokenAudience: ""`),
			"providers.tokenAttributes.serviceAccountTokenAudience: Required value"},
		{with("    requireServiceAccount: true\n", ""), "tokenAttributes.requireServiceAccount: Required value"},
		{with("requireServiceAccount: true", "requireServiceAccount: false"),
			"requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"},
		{with("provider.kubelet.k8s.io/v1", "provider.kubelet.k8s.io/v1beta1"),
			"tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API version"},
		{with("example/hint", "example/Role"), "annotation keys cannot be both required and optional"},
		{with("[example/Role]", "[a, a]"), `requiredServiceAccountAnnotationKeys: Duplicate value: "a"`},
		{with("example/hint", "/"), "optionalServiceAccountAnnotationKeys: Invalid value"},
		{with("    cacheType: ServiceAccount\n", ""),
			"cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token"},
		{with("cacheType: ServiceAccount", "cacheType: Pod"),
			`cacheType: Unsupported value: "Pod": supported values: "ServiceAccount", "Token"`},
	} {
		if _, err := load(t, test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s\ngave %v, want %q", test.config, err, test.want)
		}
	}
}

func TestRefusedPlaces(t *testing.T) {
	dir := bin(t, "")
	path := write(t, filepath.Join(t.TempDir(), "c.yaml"), withTokens, 0o600)
	for _, test := range []struct {
		path, bin, want string
		tokens          bool
	}{
		{path, "/nowhere", "plugin binary directory /nowhere did not exist", true},
		{"/nowhere", dir, `unable to access path "/nowhere"`, true},
		{t.TempDir(), dir, "no configuration files found in directory", true},
		{path, filepath.Dir(path), "cred did not exist", true},
		{path, dir, "tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders", false},
	} {
		if _, err := Load(test.path, test.bin, test.tokens); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s, %s: %v, want %q", test.path, test.bin, err, test.want)
		}
	}
	write(t, filepath.Join(dir, "cred"), "", 0o755)
	if err := os.Chmod(filepath.Join(dir, "cred"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, dir, true); err == nil || !strings.Contains(err.Error(), "error inspecting binary") {
		t.Errorf("a plugin that is no program: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(withTokens))
	f.Add([]byte(`{"apiVersion": "kubelet.config.k8s.io/v1alpha1", "kind": "CredentialProviderConfig"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		providers, err := decode(data)
		if err != nil {
			return
		}
		validate(providers, true)
	})
}
