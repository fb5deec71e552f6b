package grants

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pause"
	"github.com/microlet/microlet/services/internal/signal"
)

const (
	// registerTimeout bounds a registration, for which resources gives a plugin 20 s.
	registerTimeout = 30 * time.Second
	// listTimeout bounds the question for the plugins that resources has.
	listTimeout = 10 * time.Second
	// registerRetry is the pause after a registration that failed when resources had come back.
	registerRetry = 5 * time.Second
)

// plugin is a device plugin that podsync has found.
type plugin struct{ resource, endpoint string }

// plugins are the device plugins of the folder plugins_registry. A resources that starts again does not know of them,
// so they are registered again with each connection to it.
type plugins struct {
	conn    *grpc.ClientConn
	client  resourcesv1.ResourcesServiceClient
	log     *slog.Logger
	changed signal.Signal

	mu    sync.Mutex
	known map[plugin][]string // their versions
}

func newPlugins(conn *grpc.ClientConn, client resourcesv1.ResourcesServiceClient, log *slog.Logger) *plugins {
	return &plugins{conn: conn, client: client, log: log, changed: signal.New(), known: map[plugin][]string{}}
}

// RegisterPlugin passes a device plugin on to resources. The error is what the plugin gets.
func (g *Grants) RegisterPlugin(ctx context.Context, resource, endpoint string, versions []string) error {
	p := plugin{resource, endpoint}
	if err := g.plugins.register(ctx, p, versions); err != nil {
		return err
	}
	g.plugins.mu.Lock()
	g.plugins.known[p] = versions
	g.plugins.mu.Unlock()
	g.plugins.changed.Set()
	return nil
}

// DeregisterPlugin says that the plugin's socket is gone.
func (g *Grants) DeregisterPlugin(ctx context.Context, resource, endpoint string) error {
	g.plugins.mu.Lock()
	delete(g.plugins.known, plugin{resource, endpoint})
	g.plugins.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	_, err := g.client.DeregisterPlugin(ctx, &resourcesv1.DeregisterPluginRequest{Resource: resource, Endpoint: endpoint})
	if err != nil {
		return fmt.Errorf("deregister the device plugin of %s: %s", resource, plain(err))
	}
	return nil
}

func (p *plugins) register(ctx context.Context, one plugin, versions []string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err := p.client.RegisterPlugin(ctx, &resourcesv1.RegisterPluginRequest{
		Resource: one.resource, Endpoint: one.endpoint, Versions: versions,
	})
	if err != nil {
		return errors.New(plain(err))
	}
	return nil
}

// run registers the plugins again after each loss of the connection, until ctx ends. Without plugins it does not
// connect.
func (p *plugins) run(ctx context.Context) error {
	defer p.conn.Close()
	lost := false
	for ctx.Err() == nil {
		if p.number() == 0 {
			lost = false
			select {
			case <-ctx.Done():
			case <-p.changed:
			}
			continue
		}
		state := p.conn.GetState()
		if state == connectivity.Idle {
			p.conn.Connect()
		}
		if state == connectivity.Ready && lost {
			lost = !p.again(ctx)
			if lost {
				_ = pause.For(ctx, registerRetry) // the loop looks at ctx
				continue
			}
		}
		p.conn.WaitForStateChange(ctx, state)
		lost = true // also if it is ready again: it may have been another process before
	}
	return nil
}

func (p *plugins) number() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.known)
}

// again registers the plugins that resources is not connected to. It reports whether resources has all of them.
func (p *plugins) again(ctx context.Context) bool {
	connected, err := p.connected(ctx)
	if err != nil {
		p.log.Warn("resources does not say which device plugins it has", logkey.Err, plain(err))
		return false
	}
	p.mu.Lock()
	missing := map[plugin][]string{}
	for one, versions := range p.known {
		if !connected[one] {
			missing[one] = versions
		}
	}
	p.mu.Unlock()
	all := true
	for one, versions := range missing {
		if err := p.register(ctx, one, versions); err != nil {
			p.log.Warn("device plugin is not registered again, will retry", "resource", one.resource, logkey.Socket,
				one.endpoint, logkey.Err, err)
			all = false
		}
	}
	return all
}

func (p *plugins) connected(ctx context.Context) (map[plugin]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := p.client.ListPlugins(ctx, &resourcesv1.ListPluginsRequest{})
	if err != nil {
		return nil, err
	}
	connected := map[plugin]bool{}
	for _, one := range list.GetPlugins() {
		if one.GetConnected() {
			connected[plugin{one.GetResource(), one.GetEndpoint()}] = true
		}
	}
	return connected, nil
}
