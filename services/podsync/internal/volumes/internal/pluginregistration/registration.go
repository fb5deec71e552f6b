package pluginregistration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// handlerTimeout bounds each call of a Handler. The kubelet gives a CSI driver about as long to say which node it is
// on.
const handlerTimeout = 2 * time.Minute

// errGone is the cause of a registration's end when its socket is gone or replaced.
var errGone = errors.New("the socket is gone")

// backoff is the kubelet's delay between tries, with jitter so that plugins do not try in step.
func backoff() wait.Backoff {
	return wait.Backoff{
		Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 32, Cap: 2*time.Minute + 2*time.Second,
	}
}

// registration is the life of one socket.
type registration struct {
	dialer   dialer
	root     string
	handlers map[string]Handler
	log      *slog.Logger
	counts   counts
}

func (r registration) path() string { return filepath.Join(r.dialer.folder.path, r.dialer.relative) }

// run registers the plugin, tries again while that fails, and takes it back when its socket is gone: when alive ends.
// When ctx ends, podsync ends, and the plugin stays registered for its successor.
func (r registration) run(ctx, alive context.Context) {
	r.counts.desired(r.path(), true)
	defer r.counts.desired(r.path(), false)
	delay := backoff()
	for alive.Err() == nil {
		err := r.register(ctx, alive)
		if alive.Err() != nil {
			return
		}
		after := delay.Step()
		r.log.Warn("plugin is not registered", logkey.Socket, r.path(), logkey.Err, short(err.Error()), logkey.Delay,
			after)
		select {
		case <-alive.Done():
		case <-time.After(after):
		}
	}
}

// register returns when alive ends or with what went wrong.
func (r registration) register(ctx, alive context.Context) error {
	c, err := r.dialer.connect()
	if err != nil {
		return err
	}
	defer c.close()
	info, err := c.info(alive)
	if err != nil {
		return err
	}
	p, handler, err := r.accept(alive, info)
	if err != nil {
		return refuse(alive, c, err)
	}
	defer r.deregister(ctx, p, handler)
	if err := call(alive, p, handler.Register); err != nil {
		return refuse(alive, c, fmt.Errorf("plugin registration failed with err: %w", err))
	}
	if err := c.notify(alive, ""); err != nil {
		return err
	}
	c.close() // nothing is said any more
	r.log.Info("plugin is registered", "plugin", p.Name, logkey.Type, info.GetType(), logkey.Socket, r.path(),
		"endpoint", p.Endpoint, "versions", p.Versions)
	r.counts.actual(r.path(), true)
	defer r.counts.actual(r.path(), false)
	<-alive.Done()
	return nil
}

// accept returns the plugin and its type's handler. The errors are the kubelet's.
func (r registration) accept(ctx context.Context, info *registerapi.PluginInfo) (Plugin, Handler, error) {
	p, err := pluginOf(info, r.root, r.path())
	if err != nil {
		return p, nil, fmt.Errorf("plugin validation failed with err: %w", err)
	}
	handler, ok := r.handlers[info.GetType()]
	if !ok {
		return p, nil, fmt.Errorf("no handler registered for plugin type: %s at socket %s", info.GetType(), r.path())
	}
	if err := call(ctx, p, handler.Validate); err != nil {
		return p, nil, fmt.Errorf("plugin validation failed with err: %w", err)
	}
	return p, handler, nil
}

// call calls a handler with a deadline.
func call(ctx context.Context, p Plugin, f func(context.Context, Plugin) error) error {
	ctx, cancel := context.WithTimeout(ctx, handlerTimeout)
	defer cancel()
	return f(ctx, p)
}

// refuse sends the plugin the error, and returns it.
func refuse(ctx context.Context, c *client, err error) error {
	return errors.Join(err, c.notify(ctx, short("RegisterPlugin error -- "+err.Error())))
}

// deregister takes the plugin back, unless podsync ends.
func (r registration) deregister(ctx context.Context, p Plugin, handler Handler) {
	if ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handlerTimeout)
	defer cancel()
	handler.Deregister(ctx, p)
	r.log.Info("plugin is not registered any more", "plugin", p.Name, logkey.Socket, r.path())
}

// short bounds what a plugin can put into a line of the log, and makes text of it.
func short(text string) string {
	const most = 1024
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
