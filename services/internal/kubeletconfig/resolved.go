package kubeletconfig

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/atomicfile"
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

func (c *Config) writeResolved(path string, uid int, fields []string) error {
	part, err := c.part(fields)
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(part)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, atomicfile.Attributes{Mode: 0o600, UID: uid, GID: -1, Durable: true})
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

// Missing is the error of a service that was started without a configuration.
func Missing(r role.Role) error {
	return fmt.Errorf("%s has no kubelet configuration: give the kubelet's flags or --resolved-config", r)
}
