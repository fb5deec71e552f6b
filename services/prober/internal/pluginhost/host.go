// Package pluginhost runs the probe plugins that the owner of the node installed.
//
// A plugin starts with its first probe and keeps running. A plugin name never leads out of the plugin folder, and
// only files of root run. A plugin that crashes, hangs or answers too much affects only its own probes: they could
// not run, which is not a failure, and the plugin is restarted.
package pluginhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	probepluginv1 "github.com/microlet/microlet/proto/microlet/probeplugin/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pluginprocess"
	"github.com/microlet/microlet/services/prober/internal/probe"
	"github.com/microlet/microlet/services/prober/plugin"
)

const (
	startTimeout = 10 * time.Second
	// grace is what a plugin may take beyond the probe's timeout before it counts as hung.
	grace = time.Second
	// restartPause is between two starts of a plugin that ends by itself.
	restartPause = time.Second
	// maxMessage bounds what is taken of a plugin's answer.
	maxMessage = 10 << 10
)

// name is what a plugin may be called: no path.
var name = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`) })

// Host runs plugins. Make it with New; Close ends them.
type Host struct {
	dir     string
	sockets string
	log     *slog.Logger
	mu      sync.Mutex
	plugins map[string]*process
}

var _ probe.Plugins = (*Host)(nil)

// New returns the host of a folder, which need not exist. The plugins' sockets are below another one.
func New(dir, sockets string, log *slog.Logger) *Host {
	return &Host{dir: dir, sockets: sockets, log: log, plugins: map[string]*process{}}
}

// process is one plugin's.
type process struct {
	host *Host
	name string

	mu      sync.Mutex
	current *instance // nil before the first one, and once it is to end
	last    *pluginprocess.Process
	started time.Time
}

// instance is one run of a plugin.
type instance struct {
	client  *goplugin.Client
	process *pluginprocess.Process
	api     probepluginv1.ProbePluginServiceClient
}

func (i *instance) end() { i.process.End(i.client.Kill) }

// Probe implements probe.Plugins.
func (h *Host) Probe(ctx context.Context, t probe.Target) (probe.Result, error) {
	path, err := h.find(t.Plugin)
	if err != nil {
		return probe.Result{}, err
	}
	host, port, err := probe.Endpoint(t)
	if err != nil {
		return probe.Result{}, err
	}
	timeout := time.Duration(max(t.Probe.TimeoutSeconds, 1)) * time.Second
	request := &probepluginv1.ProbeRequest{
		Probe: t.Kind, Host: host, Port: int32(port), TimeoutMilliseconds: timeout.Milliseconds(),
		Namespace: t.Pod.Namespace, Pod: t.Pod.Name, PodUid: string(t.Pod.UID), Container: t.Container.Name,
	}
	switch {
	case t.Probe.HTTPGet != nil:
		request.Path = t.Probe.HTTPGet.Path
	case t.Probe.GRPC != nil && t.Probe.GRPC.Service != nil:
		request.Path = *t.Probe.GRPC.Service
	}
	return h.process(t.Plugin).probe(ctx, path, request, timeout)
}

func (h *Host) process(name string) *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.plugins[name]
	if p == nil {
		p = &process{host: h, name: name}
		h.plugins[name] = p
	}
	return p
}

// find returns the file of a plugin that may be run.
func (h *Host) find(plugin string) (string, error) {
	if !name().MatchString(plugin) {
		return "", fmt.Errorf("probe plugin %q: a plugin's name is of lower case letters, digits and dashes", plugin)
	}
	path := filepath.Join(h.dir, plugin)
	err := pluginprocess.CheckFile(path)
	switch {
	case errors.Is(err, pluginprocess.ErrAbsent):
		return "", fmt.Errorf("probe plugin %q is not installed on this node", plugin)
	case err != nil:
		return "", fmt.Errorf("probe plugin %q: %w", plugin, err)
	}
	return path, nil
}

// Close ends all plugins.
func (h *Host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.plugins {
		p.end(nil)
	}
}

// probe asks the plugin, and starts it first if it does not run.
func (p *process) probe(ctx context.Context, path string, r *probepluginv1.ProbeRequest,
	timeout time.Duration) (probe.Result, error) {
	i, err := p.ensure(ctx, path)
	if err != nil {
		return probe.Result{}, fmt.Errorf("probe plugin %q does not start: %w", p.name, err)
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout+grace)
	defer cancel()
	answer, err := i.api.Probe(ctx, r, grpc.MaxCallRecvMsgSize(maxMessage))
	switch {
	case outer.Err() != nil:
		return probe.Result{}, outer.Err()
	case err == nil && answer.GetHealthy():
		return probe.Result{Outcome: probe.Success, Output: answer.GetMessage()}, nil
	case err == nil:
		return probe.Result{Outcome: probe.Failure, Output: answer.GetMessage()}, nil
	// The plugin's side of the call knows the deadline too, and may give up first.
	case ctx.Err() != nil, status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Canceled:
		_ = i.process.Kill(ctx) // it would not answer when it is asked to end
		p.end(i)
		p.host.log.Warn("probe plugin hung and was ended", "plugin", p.name, logkey.After, timeout+grace)
		return probe.Result{}, fmt.Errorf("probe plugin %q did not answer within %v and was ended", p.name,
			timeout+grace)
	case i.client.Exited() || status.Code(err) == codes.Unavailable:
		p.end(i)
		return probe.Result{}, fmt.Errorf("probe plugin %q crashed", p.name)
	default:
		return probe.Result{}, fmt.Errorf("probe plugin %q: %s", p.name, status.Convert(err).Message())
	}
}

// ensure returns the running plugin.
func (p *process) ensure(ctx context.Context, path string) (*instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil && !p.current.client.Exited() {
		return p.current, nil
	}
	if p.current != nil {
		p.current.end() // what is left of it in this process
		p.current = nil
	}
	if wait := time.Until(p.started.Add(restartPause)); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if p.last != nil && p.last.Lingers() {
		return nil, pluginprocess.ErrLingers
	}
	p.started = time.Now()
	i := &instance{process: pluginprocess.New(path)}
	p.last = i.process
	i.client = goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: plugin.Handshake, Plugins: goplugin.PluginSet{plugin.Name: &plugin.Bridge{}},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			return i.process.With(cmd), nil
		},
		// Its own environment names no other folder.
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: p.host.sockets},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		SkipHostEnv:      true, AutoMTLS: true, StartTimeout: startTimeout,
		Logger: hclog.New(&hclog.LoggerOptions{
			Name:   p.name,
			Level:  hclog.Info,
			Output: &logWriter{log: p.host.log, plugin: p.name},
		}),
	})
	connection, err := i.client.Client()
	if err == nil {
		var raw any
		if raw, err = connection.Dispense(plugin.Name); err == nil {
			i.api = raw.(probepluginv1.ProbePluginServiceClient)
			p.current = i
			p.host.log.Info("probe plugin started", "plugin", p.name)
			return i, nil
		}
	}
	i.end()
	return nil, err
}

// end ends an instance of the plugin, or with nil the one of now.
func (p *process) end(i *instance) {
	p.mu.Lock()
	if i == nil || i == p.current {
		i, p.current = p.current, nil
	}
	p.mu.Unlock()
	if i != nil {
		i.end()
	}
}

// logWriter gives what a plugin writes to its standard error to the prober's log.
type logWriter struct {
	log    *slog.Logger
	plugin string
}

func (w *logWriter) Write(b []byte) (int, error) {
	w.log.Info("probe plugin says", "plugin", w.plugin, logkey.Line, string(bytes.TrimSpace(b)))
	return len(b), nil
}
