package kubeletconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"sigs.k8s.io/yaml"
)

// WriteResolved writes c where ReadResolved finds it. The file appears at once and whole, with mode 0640 and the
// group of its folder, so that services of that group can read it; it may hold secrets (staticPodURLHeader).
func (c *Config) WriteResolved(path string) error {
	if err := c.writeResolved(path); err != nil {
		return fmt.Errorf("write resolved configuration %s: %w", path, err)
	}
	return nil
}

func (c *Config) writeResolved(path string) (err error) {
	data, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".resolved-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Gid) != os.Getegid() {
		if err := file.Chown(-1, int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := file.Chmod(0o640); err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return file.Close()
}

// ReadResolved reads what WriteResolved wrote and validates it again. It refuses keys that it does not know, which
// another version may have written.
func ReadResolved(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read resolved configuration: %w", err)
	}
	c := &Config{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, fmt.Errorf("decode resolved configuration %s: %w", path, err)
	}
	if c.Kubelet.APIVersion != apiVersion || c.Kubelet.Kind != kind {
		return nil, fmt.Errorf("resolved configuration %s holds %s %s, not %s %s", path, c.Kubelet.APIVersion, c.Kubelet.Kind, apiVersion, kind)
	}
	// Not SetDefaults: a zero in this file was set on purpose, such as by --event-burst=0.
	defaultPointers(&c.Kubelet)
	if c.Node.NodeLabels == nil {
		c.Node.NodeLabels = map[string]string{}
	}
	if err := Validate(c); err != nil {
		return nil, fmt.Errorf("resolved configuration %s: %w", path, err)
	}
	return c, nil
}
