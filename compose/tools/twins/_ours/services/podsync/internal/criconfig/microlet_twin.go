package criconfig

import (
	"github.com/microlet/microlet/services/podsync/internal/criconfig/internal/dns"
	"github.com/microlet/microlet/services/podsync/internal/criconfig/internal/envfile"
)

// TwinEnvFile opens Parse of package envfile.
func TwinEnvFile(text, name string) (string, error) { return envfile.Parse(text, name) }

// TwinDNSOptions opens Options of package dns.
type TwinDNSOptions = dns.Options

// TwinDNS opens New of package dns.
func TwinDNS(o TwinDNSOptions) *dns.Configurer { return dns.New(o) }
