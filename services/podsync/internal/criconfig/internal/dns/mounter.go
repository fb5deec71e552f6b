package dns

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/microlet/microlet/services/internal/logkey"
)

// SetUpMounter gives the container of a program that mounts volumes (--experimental-mounter-path) the cluster's DNS
// servers, so that it finds servers that are Services. As with the kubelet, its root folder is "rootfs" beside the
// program, and what fails is logged.
func (c *Configurer) SetUpMounter(program string) {
	path := filepath.Join(strings.TrimSuffix(program, "/mounter"), "rootfs", "etc", "resolv.conf")
	var text strings.Builder
	for _, server := range c.o.ClusterDNS {
		text.WriteString("nameserver " + server.String() + "\n")
	}
	if c.o.ResolvConf != "" {
		host, err := readResolvConf(c.o.ResolvConf)
		if err != nil {
			c.o.Log.Error("resolv.conf of the mounter has no search domains", logkey.Err, err)
		} else {
			text.WriteString(strings.Join(append([]string{"search"}, host.searches...), " ") + "\n")
		}
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		c.o.Log.Error("resolv.conf of the mounter not written", logkey.Path, path, logkey.Err, err)
	}
}
