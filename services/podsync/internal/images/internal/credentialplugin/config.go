package credentialplugin

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	kubeletv1 "k8s.io/kubelet/config/v1"
)

// kind of the configuration.
const kind = "CredentialProviderConfig"

// configDecoder reads a CredentialProviderConfig of any version as one of v1: the older ones are v1 without
// tokenAttributes. Unknown fields are errors.
var configDecoder = sync.OnceValue(func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		gv := kubeletv1.SchemeGroupVersion
		gv.Version = version
		scheme.AddKnownTypeWithName(gv.WithKind(kind), &kubeletv1.CredentialProviderConfig{})
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
})

// Config is what the node is configured with.
type Config struct {
	Providers []kubeletv1.CredentialProvider
	// Hash of the files, which a metric shows.
	Hash string
}

// Load reads and checks the configuration in a file, or in the .json, .yaml and .yml files of a folder. The plugins in
// binDir must exist. With tokens false, tokenAttributes are refused.
func Load(path, binDir string, tokens bool) (*Config, error) {
	if _, err := os.Stat(binDir); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("plugin binary directory %s did not exist", binDir)
	} else if err != nil {
		return nil, fmt.Errorf("error inspecting binary directory %s: %w", binDir, err)
	}
	c, err := read(path)
	if err != nil {
		return nil, err
	}
	if errs := validate(c.Providers, tokens); len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate credential provider config: %w", errs.ToAggregate())
	}
	for i := range c.Providers {
		program := filepath.Join(binDir, c.Providers[i].Name)
		_, err := exec.LookPath(program)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("plugin binary executable %s did not exist", program)
		}
		if err != nil {
			return nil, fmt.Errorf("error inspecting binary executable %s: %w", program, err)
		}
	}
	return c, nil
}

func read(path string) (*Config, error) {
	files, err := filesOf(path)
	if err != nil {
		return nil, err
	}
	c, names, hash := &Config{}, sets.Set[string]{}, sha256.New()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("unable to read file %q: %w", file, err)
		}
		// The length comes first, so that no two sets of files have the same hash. A hash takes every write.
		_ = binary.Write(hash, binary.BigEndian, uint64(len(data)))
		_, _ = hash.Write(data)
		providers, err := decode(data)
		if err != nil {
			return nil, fmt.Errorf("error decoding config %q: %w", file, err)
		}
		for i := range providers {
			if names.Has(providers[i].Name) {
				return nil, fmt.Errorf("duplicate provider name %q found in configuration file(s)", providers[i].Name)
			}
			names.Insert(providers[i].Name)
		}
		c.Providers = append(c.Providers, providers...)
	}
	c.Hash = "sha256:" + hex.EncodeToString(hash.Sum(nil))
	return c, nil
}

// filesOf returns the file, or those of the folder in the order of their names.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("unable to access path %q: %w", path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("unable to read directory %q: %w", path, err)
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no configuration files found in directory %q", path)
	}
	return files, nil
}

func decode(data []byte) ([]kubeletv1.CredentialProvider, error) {
	object, gvk, err := configDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*kubeletv1.CredentialProviderConfig)
	if !ok {
		return nil, fmt.Errorf("unable to convert %T to *CredentialProviderConfig", object)
	}
	for i := range config.Providers {
		if config.Providers[i].TokenAttributes != nil && gvk.Version != kubeletv1.SchemeGroupVersion.Version {
			return nil, fmt.Errorf("strict decoding error: unknown field \"providers[%d].tokenAttributes\"", i)
		}
	}
	return config.Providers, nil
}
