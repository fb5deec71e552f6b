package pleg

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/microlet/microlet/services/internal/service"
)

// Defaults of Config.
const (
	DefaultRelistPeriod        = time.Second
	DefaultSlowestRelistPeriod = 10 * time.Second
	DefaultListTimeout         = time.Minute
)

// Config configures pleg.
type Config struct {
	// Service configures every service.
	Service service.Config
	// RelistPeriod is the pause between relists while the event stream is down. Default: 1 s, the
	// kubelet's.
	RelistPeriod time.Duration
	// SlowestRelistPeriod is the pause while the event stream proves right; an exit that the stream
	// loses is noticed that much later. Default: 10 s.
	SlowestRelistPeriod time.Duration
	// ListTimeout bounds one relist. Default: 1 m, so that one that hangs leaves time for two more
	// before pleg counts as unhealthy after 3 m.
	ListTimeout time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Service: service.DefaultConfig(), RelistPeriod: DefaultRelistPeriod,
		SlowestRelistPeriod: DefaultSlowestRelistPeriod, ListTimeout: DefaultListTimeout,
	}
}

// AddFlags adds pleg's own flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.RelistPeriod, "relist-period", c.RelistPeriod,
		"pause between relists while the runtime's event stream is down")
	fs.DurationVar(&c.SlowestRelistPeriod, "slowest-relist-period", c.SlowestRelistPeriod,
		"pause between relists while the runtime's event stream proves right")
	fs.DurationVar(&c.ListTimeout, "list-timeout", c.ListTimeout, "how long one relist may take")
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	errs := []error{c.Service.Validate()}
	if c.RelistPeriod < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("relist-period is %v: give 100ms or more", c.RelistPeriod))
	}
	if c.SlowestRelistPeriod < c.RelistPeriod {
		errs = append(errs,
			fmt.Errorf("slowest-relist-period is %v: give no less than relist-period, %v", c.SlowestRelistPeriod,
				c.RelistPeriod))
	}
	if c.ListTimeout <= 0 || c.ListTimeout > 90*time.Second {
		errs = append(errs, fmt.Errorf("list-timeout is %v: give more than 0 and no more than 1m30s", c.ListTimeout))
	}
	return errors.Join(errs...)
}
