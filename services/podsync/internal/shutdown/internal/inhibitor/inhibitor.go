// Package inhibitor makes logind delay a shutdown of the machine until it may go on.
//
// It holds a delay inhibitor, has logind wait for it as long as the node's pods may take, and takes it again when a
// shutdown was cancelled. The supervisor of this process has a copy of it, so that the machine does not go down while
// this process restarts: logind gives no new inhibitor during a shutdown.
package inhibitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/services/internal/logind"
	"github.com/microlet/microlet/services/internal/logkey"
)

// DefaultConf is the kubelet's drop-in of logind's configuration. A kubelet and microlet share it over a handover.
const DefaultConf = "/etc/systemd/logind.conf.d/99-kubelet.conf"

const (
	fileName = "shutdown-inhibitor"
	who      = "microlet"
	why      = "microlet ends the pods of the node"
	// reconnectAfter is the pause between two connections.
	reconnectAfter = time.Second
	// logind reads its configuration a little after it was asked to.
	reloadTries, reloadPause = 5, 200 * time.Millisecond
)

// Kept are the files that outlive a restart of this process; see service.Kept.
type Kept interface {
	Take(name string) *os.File
	Keep(name string, f *os.File)
	Drop(name string)
}

// Options of an Inhibitor.
type Options struct {
	// Delay is how long logind has to wait at most.
	Delay time.Duration
	// Conf is the drop-in that raises logind's limit. Default: DefaultConf.
	Conf string
	Kept Kept
	// Changed is called with whether the machine shuts down, at first and with each change. It must not block.
	Changed func(shuttingDown bool)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Inhibitor is this process's. It is safe for concurrent use.
type Inhibitor struct {
	o    Options
	held prometheus.Gauge

	mu   sync.Mutex
	file *os.File // nil while none is held
	own  bool     // it was taken by this process
}

// New returns an inhibitor that holds what an earlier process of the service held.
func New(o Options) *Inhibitor {
	if o.Conf == "" {
		o.Conf = DefaultConf
	}
	i := &Inhibitor{o: o, file: o.Kept.Take(fileName), held: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "microlet_shutdown_inhibitor_held",
		Help: "Whether a shutdown of the machine waits for the end of the pods: 1, or 0.",
	})}
	o.Metrics.MustRegister(i.held)
	i.show()
	return i
}

// show sets the gauge. The caller holds mu, or nothing else has the inhibitor yet.
func (i *Inhibitor) show() {
	i.held.Set(0)
	if i.file != nil {
		i.held.Set(1)
	}
}

// Look calls Changed once. It is for the start, before anything is decided about a pod; ctx bounds it.
func (i *Inhibitor) Look(ctx context.Context) error {
	c, err := logind.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	preparing, err := c.Preparing(ctx)
	if err == nil {
		i.o.Changed(preparing)
	}
	return err
}

// Run holds the inhibitor and calls Changed until ctx ends. The inhibitor stays then.
func (i *Inhibitor) Run(ctx context.Context) error {
	last := ""
	for ctx.Err() == nil {
		err := i.follow(ctx, func() { last = "" })
		if text := fmt.Sprint(err); ctx.Err() == nil && text != last {
			last = text
			i.o.Log.Warn("logind is not followed, a shutdown of the machine may end pods at once; will retry", logkey.Err, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectAfter):
		}
	}
	return nil
}

// follow follows logind over one connection.
func (i *Inhibitor) follow(ctx context.Context, followed func()) error {
	c, err := logind.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	preparing, err := c.Preparing(ctx)
	for ; err == nil; preparing, err = c.Next(ctx) {
		i.o.Changed(preparing)
		if !preparing {
			// One that begins just now has no inhibitor; its signal is on the way.
			if err := i.hold(ctx, c); err != nil && !errors.Is(err, logind.ErrInProgress) {
				return err
			}
		}
		followed()
	}
	return err
}

// hold takes an inhibitor unless this process has taken one. One of an earlier process is held until then.
func (i *Inhibitor) hold(ctx context.Context, c *logind.Conn) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.file != nil && i.own {
		return nil
	}
	if err := i.allow(ctx, c); err != nil {
		i.o.Log.Warn("logind does not wait as long as the pods of the node may take to end", logkey.Err, err)
	}
	f, err := c.Inhibit(ctx, who, why)
	if err != nil {
		return err
	}
	i.o.Kept.Keep(fileName, f)
	if i.file != nil {
		_ = i.file.Close()
	}
	i.file, i.own = f, true
	i.show()
	i.o.Log.Info("a shutdown of the machine waits for the end of the pods", "most", i.o.Delay)
	return nil
}

// Release lets a shutdown go on.
func (i *Inhibitor) Release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.o.Kept.Drop(fileName)
	if i.file != nil {
		_ = i.file.Close()
	}
	i.file, i.own = nil, false
	i.show()
}

// allow has logind wait long enough.
func (i *Inhibitor) allow(ctx context.Context, c *logind.Conn) error {
	most, err := c.MaxDelay(ctx)
	if err != nil || most >= i.o.Delay {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(i.o.Conf), 0o755); err != nil {
		return fmt.Errorf("make the folder of logind's drop-ins: %w", err)
	}
	const format = "# Written by microlet, as the kubelet does.\n[Login]\nInhibitDelayMaxSec=%.0f\n"
	text := fmt.Sprintf(format, i.o.Delay.Seconds())
	if err := os.WriteFile(i.o.Conf, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write logind's drop-in: %w", err)
	}
	if err := c.Reload(ctx); err != nil {
		return err
	}
	for range reloadTries {
		if most, err = c.MaxDelay(ctx); err != nil || most >= i.o.Delay {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reloadPause):
		}
	}
	return fmt.Errorf("InhibitDelayMaxSec is %v after logind has read %s again, want %v: another drop-in may override it",
		most, i.o.Conf, i.o.Delay)
}
