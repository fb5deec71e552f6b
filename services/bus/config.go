package bus

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/service"
)

// Config is what the bus is told. It has no settings of its own: what it serves is the contract's.
type Config struct {
	// Service is what every service is told. The bus listens on its BusAddress.
	Service service.Config
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{Service: service.DefaultConfig()} }

// AddFlags adds the bus's own flags: none.
func (c *Config) AddFlags(*pflag.FlagSet) {}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	if err := c.Service.Validate(); err != nil {
		return err
	}
	_, err := c.server().server()
	return err
}

func (c *Config) server() ServerOptions {
	return ServerOptions{
		Address: c.Service.BusAddress, NKeyDir: c.Service.NKeys(),
		StoreDir: filepath.Join(c.Service.RuntimeDir, "bus"),
	}
}
