package podsync

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/podsync/internal/images"
)

// Config is podsync's configuration.
type Config struct {
	Service service.Config
	Kubelet *kubeletconfig.Config
	// RuntimeCalls bounds the calls that start or remove sandboxes and containers at one
	// time. Default 4, about where a runtime is fastest: more in flight make every pod
	// wait for the last.
	RuntimeCalls int
	// ContainerLogLinks is the folder with one link per container log. Default /var/log/containers.
	ContainerLogLinks string
	// HelperNamespace is the namespace of helper pods, which carry the label microlet.dev/role: they may mount the
	// runtime folder and run as the user of that role. Any user that may create pods in it has the roles of all helpers.
	// Default: none.
	HelperNamespace string
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{RuntimeCalls: 4, ContainerLogLinks: "/var/log/containers"}
}

// AddFlags adds podsync's own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.RuntimeCalls, "runtime-calls", c.RuntimeCalls,
		"how many calls that start or remove sandboxes and containers run at one time")
	fs.StringVar(&c.ContainerLogLinks, "container-log-links", c.ContainerLogLinks,
		"folder of the links to container logs that log collectors follow; empty makes none")
	fs.StringVar(&c.HelperNamespace, "helper-namespace", c.HelperNamespace,
		"namespace of helper pods, which carry the label microlet.dev/role and may mount the runtime folder and run as "+
			"that role's user; who may create pods in it has these roles; empty: there are none")
}

// Validate reports invalid settings.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.Podsync)
	}
	var errs []error
	if c.RuntimeCalls < 1 {
		errs = append(errs, fmt.Errorf("--runtime-calls=%d: must be at least 1", c.RuntimeCalls))
	}
	if c.HelperNamespace != "" {
		if problems := validation.IsDNS1123Label(c.HelperNamespace); len(problems) > 0 {
			errs = append(errs,
				fmt.Errorf("--helper-namespace=%q: %s", c.HelperNamespace, strings.Join(problems, "; ")))
		}
	}
	if c.Kubelet.RuntimeEndpoint() == "" {
		errs = append(errs,
			errors.New("containerRuntimeEndpoint is empty: name the runtime's socket, such as "+
				"unix:///run/containerd/containerd.sock"))
	}
	errs = append(errs, images.Check(c.Kubelet))
	return errors.Join(errs...)
}
