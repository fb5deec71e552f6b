// Package registry has the extended resources of the node, with their plugins and devices. It does no I/O, and its
// caller guards it.
package registry

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/microlet/microlet/services/resources/internal/devices/internal/answer"
	"github.com/microlet/microlet/services/resources/internal/devices/internal/plugin"
)

// Registry is safe for one goroutine at a time. Make it with New.
type Registry struct {
	grace     time.Duration
	resources map[string]*Resource
}

// Resource is an extended resource. It stays for as long as the process does.
type Resource struct {
	Name string
	// plugins are in the order in which they registered.
	plugins []*Entry
	// expires is when the resource is not registered any more; zero while a plugin is connected, and after that.
	expires time.Time
	// registered: the resource has a plugin, or had one a short while ago.
	registered bool
}

// Entry is a plugin of a resource, by its endpoint.
type Entry struct {
	Endpoint string
	// Conn is nil if the plugin is away.
	Conn plugin.Plugin
	// Since when it is connected, or away.
	Since time.Time
	// Problem is why it is away.
	Problem string
	// Prepares is the plugin's option, or was.
	Prepares bool
	// Devices are those that it reported last.
	Devices answer.Devices
	// Listed: it has reported since it came back.
	Listed bool
	// healthy are those of the devices, in order.
	healthy []string
}

// New returns a registry without resources. The capacity of one whose last plugin went away stays for the grace.
func New(grace time.Duration) *Registry {
	return &Registry{grace: grace, resources: map[string]*Resource{}}
}

// Resource returns a known resource; nil if it has not had a plugin.
func (r *Registry) Resource(name string) *Resource { return r.resources[name] }

// Resources returns all known ones by name.
func (r *Registry) Resources() []*Resource {
	return slices.SortedFunc(maps.Values(r.resources), func(a, b *Resource) int { return strings.Compare(a.Name, b.Name) })
}

// Plugins counts the plugins of registered resources, those that are away among them.
func (r *Registry) Plugins() int {
	n := 0
	for _, resource := range r.resources {
		if resource.registered {
			n += len(resource.plugins)
		}
	}
	return n
}

func (r *Registry) resource(name string) *Resource {
	if r.resources[name] == nil {
		r.resources[name] = &Resource{Name: name}
	}
	return r.resources[name]
}

// Know adds a resource of which a pod has devices.
func (r *Registry) Know(name string) { r.resource(name) }

// Restore adds a resource that the checkpoint file names, without capacity as with the kubelet.
func (r *Registry) Restore(name string, now time.Time) {
	resource := r.resource(name)
	resource.registered, resource.expires = true, now.Add(r.grace)
}

// RestorePlugin adds a plugin that the file names, which is away.
func (r *Registry) RestorePlugin(name, endpoint string, prepares bool, now time.Time) {
	r.Restore(name, now)
	resource := r.resource(name)
	if resource.Entry(endpoint) == nil {
		resource.plugins = append(resource.plugins, &Entry{
			Endpoint: endpoint, Since: now, Prepares: prepares, Problem: "it has not been connected since the start",
		})
	}
}

// Connect gives a plugin a connection, and returns the one that it had. The plugin is the last of its resource then, if
// it registered. One that was restored keeps its place.
func (r *Registry) Connect(name, endpoint string, conn plugin.Plugin, registers bool, now time.Time) plugin.Plugin {
	resource := r.resource(name)
	e := resource.Entry(endpoint)
	if e == nil {
		e = &Entry{Endpoint: endpoint}
		resource.plugins = append(resource.plugins, e)
	}
	if registers {
		resource.plugins = append(slices.DeleteFunc(resource.plugins, func(o *Entry) bool { return o == e }), e)
	}
	before := e.Conn
	e.Conn, e.Since, e.Problem, e.Prepares = conn, now, "", conn.Prepares()
	resource.registered, resource.expires = true, time.Time{}
	return before
}

// List notes the devices that a connection has reported. It has no effect if the plugin has another connection.
func (r *Registry) List(name string, conn plugin.Plugin, devices answer.Devices) bool {
	e := r.connected(name, conn)
	if e == nil {
		return false
	}
	e.Devices, e.Listed, e.healthy = devices, true, []string{}
	for id, d := range devices {
		if d.Healthy {
			e.healthy = append(e.healthy, id)
		}
	}
	slices.Sort(e.healthy)
	return true
}

// Disconnect notes the end of a connection, if the plugin still has it. The endpoint is forgotten on demand.
func (r *Registry) Disconnect(name string, conn plugin.Plugin, problem string, now time.Time) bool {
	e := r.connected(name, conn)
	if e == nil {
		return false
	}
	e.Conn, e.Since, e.Problem, e.Listed = nil, now, problem, false
	if resource := r.resources[name]; !resource.Connected() {
		resource.expires = now.Add(r.grace)
	}
	return true
}

// Fail notes why a restored plugin could not be connected to, and reports whether it is away still: it may have
// registered since.
func (r *Registry) Fail(name, endpoint, problem string) bool {
	resource := r.resources[name]
	if resource == nil || resource.Entry(endpoint) == nil || resource.Entry(endpoint).Conn != nil {
		return false
	}
	resource.Entry(endpoint).Problem = problem
	return true
}

func (r *Registry) connected(name string, conn plugin.Plugin) *Entry {
	resource := r.resources[name]
	if resource == nil || conn == nil {
		return nil
	}
	for _, e := range resource.plugins {
		if e.Conn == conn {
			return e
		}
	}
	return nil
}

// Expire drops what has been away for the grace, reports whether that is something, and returns when the next is to be
// dropped; zero if none is.
func (r *Registry) Expire(now time.Time) (next time.Time, dropped bool) {
	earliest := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, resource := range r.resources {
		if !resource.expires.IsZero() {
			if now.Before(resource.expires) {
				earliest(resource.expires)
			} else {
				resource.registered, resource.expires, dropped = false, time.Time{}, true
			}
		}
		before := len(resource.plugins)
		resource.prune(func(e *Entry) bool {
			until := e.Since.Add(r.grace)
			if now.Before(until) {
				earliest(until)
				return true
			}
			return false
		})
		dropped = dropped || len(resource.plugins) < before
	}
	return next, dropped
}

// prune drops plugins that are away and not to be kept, but the last one, of which operators want to know why it went.
func (r *Resource) prune(keep func(*Entry) bool) {
	kept := slices.DeleteFunc(slices.Clone(r.plugins), func(e *Entry) bool { return e.Conn == nil && !keep(e) })
	if len(kept) == 0 && len(r.plugins) > 0 {
		last := slices.MaxFunc(r.plugins, func(a, b *Entry) int { return a.Since.Compare(b.Since) })
		last.Devices, last.healthy = nil, nil
		kept = []*Entry{last}
	}
	r.plugins = kept
}

// Entry returns the plugin of an endpoint; nil if there is none.
func (r *Resource) Entry(endpoint string) *Entry {
	for _, e := range r.plugins {
		if e.Endpoint == endpoint {
			return e
		}
	}
	return nil
}

// Entries returns the plugins in the order in which they registered.
func (r *Resource) Entries() []*Entry { return r.plugins }

// Connected reports whether a plugin of the resource is connected.
func (r *Resource) Connected() bool {
	return slices.ContainsFunc(r.plugins, func(e *Entry) bool { return e.Conn != nil })
}

// Registered reports whether the resource has a plugin, or had one a short while ago.
func (r *Resource) Registered() bool { return r.registered }

// Primary returns the plugin that hands out the devices: the last that is connected and has said which it has. It is
// nil if there is none.
func (r *Resource) Primary() *Entry {
	for _, e := range slices.Backward(r.plugins) {
		if e.Conn != nil && e.Listed {
			return e
		}
	}
	return nil
}

// Reported returns the devices of the primary, or those that were reported before all plugins went away.
func (r *Resource) Reported() answer.Devices {
	if p := r.Primary(); p != nil {
		return p.Devices
	}
	var last *Entry
	for _, e := range r.plugins {
		if e.Devices != nil && (last == nil || !e.Since.Before(last.Since)) {
			last = e
		}
	}
	if last == nil || !r.registered {
		return nil
	}
	return last.Devices
}

// Healthy returns the devices that can be handed out, in order; none while no plugin says which. No one changes it.
func (r *Resource) Healthy() []string {
	if p := r.Primary(); p != nil {
		return p.healthy
	}
	return []string{}
}

// Problem says why no plugin hands out devices.
func (r *Resource) Problem() string {
	problem, since := "it has not registered since the start", time.Time{}
	for _, e := range r.plugins {
		if e.Conn != nil {
			return "it has not said which devices it has"
		}
		if !e.Since.Before(since) {
			problem, since = e.Problem, e.Since
		}
	}
	return problem
}

// Prepares reports whether the plugin wants to prepare devices before a container starts, or wanted to before it went
// away.
func (r *Resource) Prepares() bool {
	if p := r.Primary(); p != nil {
		return p.Prepares
	}
	return len(r.plugins) > 0 && r.plugins[len(r.plugins)-1].Prepares
}
