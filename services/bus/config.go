package bus

import (
	"errors"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/service"
)

// Config configures the bus. What it serves is the contract's.
type Config struct {
	// Service configures every service. The bus listens on its BusSocket.
	Service service.Config
	// ViewAddress is a loopback host:port at which the viewer, who reads everything and writes nothing, may look at
	// the bus with the tools of NATS, over TLS. Default: none.
	ViewAddress string
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{Service: service.DefaultConfig()} }

// AddFlags adds the bus's own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.ViewAddress, "bus-view-address", c.ViewAddress,
		`loopback host:port for looking at the bus with the "nats" command, over TLS and with the viewer's key, which reads and cannot write; empty for none`)
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	err := c.Service.Validate()
	if c.ViewAddress != "" {
		err = errors.Join(err, c.view().Validate())
	}
	return err
}

func (c *Config) view() *View {
	return &View{Address: c.ViewAddress, CertFile: filepath.Join(filepath.Dir(c.Service.BusSocket()), "view.crt")}
}

func (c *Config) server() ServerOptions {
	o := ServerOptions{NKeyDir: c.Service.NKeys(), StoreDir: filepath.Join(c.Service.RuntimeDir, "bus")}
	if c.ViewAddress != "" {
		o.View = c.view()
	}
	return o
}
