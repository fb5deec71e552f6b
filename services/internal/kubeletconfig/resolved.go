package kubeletconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// WriteResolved writes c, or only these fields of it, where ReadResolved finds them. A field is named as in a file,
// "maxPods", a flag that no field mirrors by its name here, "node.rootDir"; nil is all. The file appears at once and
// whole, and belongs to uid alone (mode 0600): it may hold secrets, such as staticPodURLHeader.
func (c *Config) WriteResolved(path string, uid int, fields []string) error {
	if err := c.writeResolved(path, uid, fields); err != nil {
		return fmt.Errorf("write resolved configuration %s: %w", path, err)
	}
	return nil
}

func (c *Config) writeResolved(path string, uid int, fields []string) (err error) {
	part, err := c.part(fields)
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(part)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".resolved-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	if uid != os.Geteuid() {
		if err := file.Chown(uid, -1); err != nil {
			return err
		}
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

// ReadResolved reads what WriteResolved wrote. Fields that were not written have their defaults; when all were, the
// whole is validated again. It refuses keys that it does not know, which another version may have written.
func ReadResolved(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, unread("--resolved-config", path, err)
	}
	c := &Config{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, notResolved(path, decodeFault(err))
	}
	if c.Kubelet.APIVersion != apiVersion || c.Kubelet.Kind != kind {
		return nil, notResolved(path, fmt.Sprintf("it holds %s %s, not %s %s", c.Kubelet.APIVersion, c.Kubelet.Kind,
			apiVersion, kind))
	}
	complete, err := c.fillAbsent(data)
	if err != nil {
		return nil, notResolved(path, decodeFault(err))
	}
	// Not SetDefaults: a zero in this file was set on purpose, such as by --event-burst=0.
	defaultPointers(&c.Kubelet)
	if c.Node.NodeLabels == nil {
		c.Node.NodeLabels = map[string]string{}
	}
	if !complete {
		return c, nil // it was valid as a whole, and a part may lack what the rest is checked against
	}
	if err := Validate(c); err != nil {
		return nil, fmt.Errorf("resolved configuration %s: %w", path, err)
	}
	return c, nil
}

// notResolved is the problem of a file that WriteResolved of this version has not written.
func notResolved(path, fault string) Problem {
	return Problem{
		Field: "--resolved-config", Value: path, Detail: "it is not what this version of microlet up writes: " + fault,
		Remedy: "restart microlet up, or give the kubelet's flags instead",
	}
}
