package kubeletconfig

import (
	"github.com/spf13/pflag"
)

// FlagValues returns what each of the kubelet's flags comes to, by its name without dashes, whether it was
// given on the command line, in a file or not at all. What may be a secret is masked.
func (c *Config) FlagValues() map[string]string {
	// Registering a flag writes its default through its pointer, so both are copies.
	f := Flags{NodeFlags: c.Node}
	shown := c.Kubelet.DeepCopy()
	fs := pflag.NewFlagSet("values", pflag.ContinueOnError)
	f.bindNodeFlags(fs)
	addConfigFlags(fs, shown)
	values := map[string]string{}
	fs.VisitAll(func(fl *pflag.Flag) {
		if fl.Name == podInfraFlag || fl.Name == "version" {
			return
		}
		values[fl.Name] = fl.Value.String()
		if fl.Name == "manifest-url-header" && len(shown.StaticPodURLHeader) > 0 {
			values[fl.Name] = masked
		}
	})
	return values
}
