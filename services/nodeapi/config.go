package nodeapi

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/internal/service"
)

// Defaults of Config.
const (
	DefaultMaxConnections = 2000
	DefaultMaxRequests    = 100
	DefaultMaxLogs        = 1000
	DefaultMaxStreams     = 500

	DefaultMaxUnauthenticated = 64
)

// Config configures nodeapi.
type Config struct {
	// Service configures every service; its NodeName must be set.
	Service service.Config
	// Kubelet is the node's configuration.
	Kubelet *kubeletconfig.Config
	// Credentials is the folder of this service's own copies of the serving certificate, its key and the
	// clients' CA, as "microlet up" makes them. Default: none, and the configured files are read.
	Credentials string
	// MaxConnections is how many connections a port may have. Callers who are not authenticated may have
	// three quarters of them on the HTTPS port, and one address an eighth. Default: 2000.
	MaxConnections int
	// MaxUnauthenticated is how many requests of unauthenticated callers may be under way on the HTTPS port; one address
	// may have a quarter of them. Default: 64.
	MaxUnauthenticated int
	// MaxRequests is how many requests with short answers may be under way. Default: 100.
	MaxRequests int
	// MaxLogs is how many container logs may be read or followed at one time. Default: 1000.
	MaxLogs int
	// MaxStreams is how many exec, attach and port-forward sessions there may be. Default: 500.
	MaxStreams int
}

// DefaultConfig returns the defaults; Kubelet has none.
func DefaultConfig() Config {
	return Config{
		Service: service.DefaultConfig(), MaxConnections: DefaultMaxConnections, MaxRequests: DefaultMaxRequests,
		MaxLogs: DefaultMaxLogs, MaxStreams: DefaultMaxStreams, MaxUnauthenticated: DefaultMaxUnauthenticated,
	}
}

// AddFlags adds nodeapi's own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Credentials, "api-credentials", c.Credentials,
		"folder of the kubelet's API's own copies of certificates and key; microlet up sets it")
	fs.IntVar(&c.MaxConnections, "api-max-connections", c.MaxConnections, "connections that a port of the kubelet's API "+
		"may have; callers who are not authenticated may have three quarters of those of the HTTPS port, and one remote "+
		"address (an IPv6 /64) an eighth")
	fs.IntVar(&c.MaxUnauthenticated, "api-max-unauthenticated", c.MaxUnauthenticated, "requests that the kubelet's API "+
		"authenticates at one time of callers who are not known yet; one remote address (an IPv6 /64) may have a "+
		"quarter of them")
	fs.IntVar(&c.MaxRequests, "api-max-requests", c.MaxRequests,
		"requests with short answers that the kubelet's API serves at one time")
	fs.IntVar(&c.MaxLogs, "api-max-logs", c.MaxLogs, "container logs that the kubelet's API serves at one time")
	fs.IntVar(&c.MaxStreams, "api-max-streams", c.MaxStreams,
		"exec, attach and port-forward sessions that the kubelet's API serves at one time")
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if c.Kubelet == nil {
		return kubeletconfig.Missing(role.NodeAPI)
	}
	errs := []error{c.Service.ValidateOnNode()}
	for name, n := range map[string]int{
		"api-max-connections":     c.MaxConnections,
		"api-max-requests":        c.MaxRequests,
		"api-max-logs":            c.MaxLogs,
		"api-max-streams":         c.MaxStreams,
		"api-max-unauthenticated": c.MaxUnauthenticated,
	} {
		if n < 2 {
			errs = append(errs, fmt.Errorf("%s is %d: give 2 or more", name, n))
		}
	}
	return errors.Join(errs...)
}

// Names of the copies in the folder Credentials.
const (
	ServingCertificate = "serving.crt"
	ServingKey         = "serving.key"
	ClientCA           = "client-ca.crt"
	// ServingPair is the certificate that the node requested and its key, in one file: two would be replaced one after
	// the other.
	ServingPair = "serving.pem"
)

// files is the configuration with the certificates' files that this process reads.
func (c *Config) files() *kubeletv1beta1.KubeletConfiguration {
	k := c.Kubelet.Kubelet
	if c.Credentials == "" {
		return &k
	}
	if k.ServerTLSBootstrap {
		k.TLSCertFile, k.TLSPrivateKeyFile = "", "" // they are in the pair until there is another
	}
	for path, name := range map[*string]string{
		&k.TLSCertFile:                      ServingCertificate,
		&k.TLSPrivateKeyFile:                ServingKey,
		&k.Authentication.X509.ClientCAFile: ClientCA,
	} {
		if *path != "" {
			*path = filepath.Join(c.Credentials, name)
		}
	}
	return &k
}

// requestedPair is the file of the serving certificate that the node requests.
func (c *Config) requestedPair() string {
	if c.Credentials == "" {
		return c.Kubelet.ServingPair()
	}
	return filepath.Join(c.Credentials, ServingPair)
}

// address joins a host and a port of the configuration.
func address(host string, port int32) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
