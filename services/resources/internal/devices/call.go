package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/resources/internal/devices/internal/plugin"
)

// ask calls the plugins for what is reserved: all at the same time, and each for one container after the other.
func (t *transaction) ask(ctx context.Context) error {
	byPlugin := map[plugin.Plugin][]*call{}
	for _, c := range t.calls {
		byPlugin[c.plugin] = append(byPlugin[c.plugin], c)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, calls := range byPlugin {
		group.Go(func() error {
			for _, c := range calls {
				if err := t.askOne(ctx, c); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (t *transaction) askOne(ctx context.Context, c *call) error {
	began := time.Now()
	response, err := c.plugin.Allocate(ctx, slices.Sorted(maps.Keys(c.grant.Devices)))
	t.m.metrics.allocated(c.resource, began)
	if err != nil {
		return callFailed(c.resource, err)
	}
	c.grant.Answer = response
	return nil
}

// Prepare calls PreStartContainer of the plugins of a container that want it. It returns when all have answered, or
// one has failed.
func (m *Manager) Prepare(ctx context.Context, uid types.UID, container string) error {
	type preparation struct {
		plugin  plugin.Plugin
		devices []string
	}
	var all []preparation
	err := func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, c := range m.ledger.Granted(uid) {
			if c.Name != container {
				continue
			}
			for _, name := range sortedKeys(c.Grants) {
				r := m.registry.Resource(name)
				if !r.Prepares() {
					continue
				}
				p := r.Primary()
				if p == nil {
					return fmt.Errorf("the device plugin of %s is to prepare the container, and is away: %s", name, r.Problem())
				}
				all = append(all, preparation{p.Conn, slices.Sorted(maps.Keys(c.Grants[name].Devices))})
			}
			return nil
		}
		return errNothing
	}()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range all {
		group.Go(func() error { return p.plugin.Prepare(ctx, p.devices) })
	}
	return group.Wait()
}

var errNothing = errors.New("the container has no devices")
