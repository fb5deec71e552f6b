package devices

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/answer"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/plugin"
)

// maxPlugins bounds the plugins of all resources. Each costs a connection.
const maxPlugins = 256

var (
	errStopped    = errors.New("the device manager has stopped")
	errRegistered = errors.New("it has registered by itself")
)

// Register connects to a plugin and returns when that has said what options it has, within 20 s. The endpoint is the
// path of its socket, absolute or in the folder device-plugins. A plugin that is registered with the same resource and
// endpoint already is replaced. The last plugin of a resource is the one that is asked for devices. A registered plugin
// is in the file, so that a process that starts after a kill connects to it. Errors have the kubelet's words.
func (m *Manager) Register(ctx context.Context, resource, endpoint string, versions []string) error {
	if err := check(resource, versions); err != nil {
		return err
	}
	endpoint = m.path(endpoint)
	m.metrics.registrations.WithLabelValues(resource).Inc()
	conn, err := m.dial(ctx, endpoint, false)
	if err == nil {
		err = m.connect(resource, endpoint, conn, true)
	}
	if err != nil {
		m.o.Log.Warn("a device plugin cannot register", "resource", resource, logkey.Socket, endpoint, logkey.Err, err)
		return err
	}
	m.o.Log.Info("a device plugin has registered", "resource", resource, logkey.Socket, endpoint)
	// It will not register again when this process is killed: the supervisor keeps the socket at which it did so.
	if err := m.write(); err != nil {
		m.o.Log.Error("the checkpoint file does not have a plugin that has registered", "resource", resource,
			logkey.Socket, endpoint, logkey.Err, err)
		m.awaken()
	}
	return nil
}

func (m *Manager) path(endpoint string) string {
	if filepath.IsAbs(endpoint) {
		return filepath.Clean(endpoint)
	}
	return filepath.Join(m.o.Folder, endpoint)
}

// check refuses what the kubelet refuses, with its words.
func check(resource string, versions []string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		if len(versions) == 1 {
			return fmt.Errorf("requested API version %.100q is not supported by kubelet. Supported version is %q", versions[0],
				pluginapi.SupportedVersions)
		}
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %.200q", pluginapi.Version, versions)
	}
	if !podutil.IsExtended(v1.ResourceName(resource)) {
		return fmt.Errorf("the ResourceName %.400q is invalid", resource)
	}
	return nil
}

// connect makes this the connection of a plugin, which registers or was restored.
func (m *Manager) connect(resource, endpoint string, conn plugin.Plugin, registers bool) error {
	var (
		before  plugin.Plugin
		refused error
	)
	m.update(resource, func() {
		known := m.registry.Resource(resource)
		isNew := known == nil || known.Entry(endpoint) == nil
		switch {
		case m.closed:
			refused = errStopped
		case isNew && m.registry.Plugins() >= maxPlugins:
			refused = fmt.Errorf("there are %d device plugins, more are not possible", maxPlugins)
		case !registers && !isNew && known.Entry(endpoint).Conn != nil:
			refused = errRegistered
		default:
			before = m.registry.Connect(resource, endpoint, conn, registers, time.Now())
			m.watching.Go(func() { m.watch(resource, endpoint, conn) })
		}
	})
	if before != nil {
		// What it may still report does not count: the plugin has another connection.
		before.Close()
	}
	if refused != nil {
		conn.Close()
	}
	return refused
}

// watch follows a plugin until its connection ends.
func (m *Manager) watch(resource, endpoint string, conn plugin.Plugin) {
	err := conn.Watch(m.running, func(devices answer.Devices) {
		m.update(resource, func() {
			if m.registry.List(resource, conn, devices) {
				m.settle(resource, endpoint)
			}
		})
	})
	conn.Close()
	if m.running.Err() != nil {
		return
	}
	was := false
	m.update(resource, func() {
		if was = m.registry.Disconnect(resource, conn, err.Error(), time.Now()); was {
			m.settle(resource, endpoint)
		}
	})
	if was {
		m.o.Log.Warn("a device plugin is away", "resource", resource, logkey.Socket, endpoint, logkey.Err, err)
	}
}

// Deregister ends the connection to a plugin, if there is one.
func (m *Manager) Deregister(resource, endpoint string) {
	endpoint = m.path(endpoint)
	var conn plugin.Plugin
	m.update(resource, func() {
		if r := m.registry.Resource(resource); r != nil && r.Entry(endpoint) != nil {
			conn = r.Entry(endpoint).Conn
			m.registry.Disconnect(resource, conn, "its socket is gone", time.Now())
		}
	})
	if conn != nil {
		conn.Close()
		m.o.Log.Info("a device plugin is gone", "resource", resource, logkey.Socket, endpoint)
	}
}

// reconnect dials the plugins that the file names. Those that are not there, or say nothing for settleTime, are away.
func (m *Manager) reconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := range m.unsettled {
		m.watching.Go(func() { m.redial(at.resource, at.endpoint) })
	}
	if len(m.unsettled) > 0 {
		m.watching.Go(func() {
			timer := time.NewTimer(settleTime)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-m.settled:
			case <-m.running.Done():
			}
			m.update("", func() {
				for at := range m.unsettled {
					m.settle(at.resource, at.endpoint)
				}
			})
		})
	}
}

func (m *Manager) redial(resource, endpoint string) {
	conn, err := m.dial(m.running, endpoint, true)
	if err == nil {
		err = m.connect(resource, endpoint, conn, false)
	}
	if err == nil {
		m.o.Log.Info("a device plugin of before is connected", "resource", resource, logkey.Socket, endpoint)
		return
	}
	if errors.Is(err, errRegistered) {
		return
	}
	m.update(resource, func() {
		if m.registry.Fail(resource, endpoint, err.Error()) {
			m.settle(resource, endpoint)
		}
	})
	m.o.Log.Info("a device plugin of before is away", "resource", resource, logkey.Socket, endpoint, logkey.Err, err)
}

// settle notes that a plugin that the file names has said what it has, or is away. Call with mu held, in an update.
func (m *Manager) settle(resource, endpoint string) {
	at := place{resource, endpoint}
	if !m.unsettled[at] {
		return
	}
	delete(m.unsettled, at)
	if len(m.unsettled) == 0 {
		close(m.settled)
		m.change.Node = true
		m.awaken()
	}
}
