package imagegc

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/imagegc/internal/imagelist"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// DefaultStateDir is the default of Config.StateDir.
const DefaultStateDir = "/var/lib/microlet/imagegc"

// Config configures imagegc.
type Config struct {
	// Service configures every service; its NodeName must be set.
	Service service.Config
	// Kubelet is the node's configuration.
	Kubelet *kubeletconfig.Config
	// StateDir is the folder that holds the ages of images. It must outlive a reboot, and be the service's alone.
	// "microlet up" makes it. Default: /var/lib/microlet/imagegc.
	StateDir string
	// RetentionPlugin is the path of a program that names images to keep. Default: none.
	RetentionPlugin string
}

// DefaultConfig returns the defaults; Kubelet has none.
func DefaultConfig() Config {
	return Config{Service: service.DefaultConfig(), StateDir: DefaultStateDir}
}

// KubeletFields are the fields of the kubelet's configuration that the service reads.
func KubeletFields() []string {
	return []string{
		"imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMaximumGCAge", "imageMinimumGCAge",
		"nodeStatusMaxImages",
	}
}

// AddFlags adds imagegc's own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.StateDir, "imagegc-state-dir", c.StateDir, "folder in which imagegc keeps the ages of images")
	fs.StringVar(&c.RetentionPlugin, "image-retention-plugin", c.RetentionPlugin,
		"program that names images which are not to be removed; empty is none")
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.ImageGC)
	}
	errs := []error{c.Service.ValidateOnNode()}
	if !filepath.IsAbs(c.StateDir) || filepath.Clean(c.StateDir) != c.StateDir || c.StateDir == "/" {
		errs = append(errs, fmt.Errorf("imagegc-state-dir is %q: give an absolute path without \"..\"", c.StateDir))
	}
	if c.RetentionPlugin != "" && !filepath.IsAbs(c.RetentionPlugin) {
		errs = append(errs, fmt.Errorf("image-retention-plugin is %q: give an absolute path", c.RetentionPlugin))
	}
	high, low := c.highThreshold(), c.lowThreshold()
	if high < 0 || high > wholeDisk {
		errs = append(errs, fmt.Errorf("imageGCHighThresholdPercent is %d: give 0 to 100", high))
	}
	if low < 0 || low > high {
		errs = append(errs, fmt.Errorf("imageGCLowThresholdPercent is %d: give 0 to imageGCHighThresholdPercent (%d)", low,
			high))
	}
	if d := c.Kubelet.Kubelet.ImageMinimumGCAge.Duration; d < 0 {
		errs = append(errs, fmt.Errorf("imageMinimumGCAge is %v: give 0 or more", d))
	}
	if d := c.Kubelet.Kubelet.ImageMaximumGCAge.Duration; d < 0 {
		errs = append(errs, fmt.Errorf("imageMaximumGCAge is %v: give 0 or more", d))
	}
	if n := c.maxImages(); n < imagelist.Unlimited {
		errs = append(errs, fmt.Errorf("nodeStatusMaxImages is %d: give -1 or more", n))
	}
	return errors.Join(errs...)
}

// wholeDisk is the high threshold that is never reached.
const wholeDisk = 100

// The kubelet's defaults, for a configuration that has none.
const (
	defaultHighThreshold = 85
	defaultLowThreshold  = 80
	defaultMaxImages     = 50
)

func (c *Config) highThreshold() int {
	return int(ptr.Deref(c.Kubelet.Kubelet.ImageGCHighThresholdPercent, defaultHighThreshold))
}

func (c *Config) lowThreshold() int {
	return int(ptr.Deref(c.Kubelet.Kubelet.ImageGCLowThresholdPercent, defaultLowThreshold))
}

func (c *Config) maxImages() int {
	return int(ptr.Deref(c.Kubelet.Kubelet.NodeStatusMaxImages, defaultMaxImages))
}

// collects reports whether images are removed without a request. As with the kubelet, a high threshold of 100 without a
// maximum age switches that off.
func (c *Config) collects() bool {
	return c.highThreshold() != wholeDisk || c.Kubelet.Kubelet.ImageMaximumGCAge.Duration != 0
}
