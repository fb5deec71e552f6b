// Package retention asks the image retention plugin of the node's owner which images to keep.
//
// The plugin runs only while it is asked. If it fails in any way, no image is removed: an image that the owner wants to
// keep may be one that cannot be pulled again, and a disk that stays full has other remedies, such as eviction.
package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/imagegc/plugin"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/pluginprocess"
)

const (
	startTimeout = 10 * time.Second
	// answerTimeout bounds the plugin's decision.
	answerTimeout = 30 * time.Second
	// patience is for all of it, with the plugin's end. What waits for longer waits in the kernel, such as for the file
	// system that the plugin lies on.
	patience = startTimeout + answerTimeout + 15*time.Second
	// maxMessage bounds the request and the answer: several times what a node with the most images has.
	maxMessage = 16 << 20
)

// Plugin is the plugin of the node. Only one goroutine at a time may use it.
type Plugin struct {
	path    string
	sockets string
	log     *slog.Logger
	// asking holds a token while a goroutine asks, which Keep may have left behind.
	asking chan struct{}
	// process is the last one. It belongs to the goroutine that asks.
	process *pluginprocess.Process
}

// New returns the plugin of this path, whose socket is below a folder; an empty path is no plugin.
func New(path, sockets string, log *slog.Logger) *Plugin {
	return &Plugin{path: path, sockets: sockets, log: log, asking: make(chan struct{}, 1)}
}

// Keep returns the IDs of the images to keep.
func (p *Plugin) Keep(ctx context.Context, images []*retentionv1.KeepRequest_Image) (map[string]bool, error) {
	if p.path == "" || len(images) == 0 {
		return nil, nil //nolint:nilnil // nothing is kept
	}
	ids, err := p.await(func() ([]string, error) { return p.ask(ctx, images) })
	if err != nil {
		return nil, fmt.Errorf("image retention plugin %s: %w", p.path, err)
	}
	kept := make(map[string]bool, len(ids))
	for _, id := range ids {
		kept[id] = true
	}
	return kept, nil
}

// await returns the answer, or gives up.
func (p *Plugin) await(ask func() ([]string, error)) ([]string, error) {
	select {
	case p.asking <- struct{}{}:
	default:
		return nil, errors.New("it has neither answered nor ended since it was asked before")
	}
	type answer struct {
		ids []string
		err error
	}
	answers := make(chan answer, 1)
	go func() { // at most one: it has the token
		ids, err := ask()
		<-p.asking
		answers <- answer{ids, err}
	}()
	select {
	case a := <-answers:
		return a.ids, a.err
	case <-time.After(patience):
		return nil, fmt.Errorf("it neither answers nor ends within %v", patience)
	}
}

func (p *Plugin) ask(ctx context.Context, images []*retentionv1.KeepRequest_Image) ([]string, error) {
	if p.process != nil && p.process.Lingers() {
		return nil, pluginprocess.ErrLingers
	}
	if err := pluginprocess.CheckFile(p.path); err != nil {
		return nil, err
	}
	process := pluginprocess.New(p.path)
	p.process = process
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: plugin.Handshake, Plugins: goplugin.PluginSet{plugin.Name: &plugin.Bridge{}},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			return process.With(cmd), nil
		},
		// Its own environment names no other folder.
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: p.sockets},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		SkipHostEnv:      true, AutoMTLS: true, StartTimeout: startTimeout,
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: &logWriter{p.log}}),
	})
	defer process.End(client.Kill)
	connection, err := client.Client()
	if err != nil {
		return nil, fmt.Errorf("it does not start: %w", err)
	}
	raw, err := connection.Dispense(plugin.Name)
	if err != nil {
		return nil, err
	}
	api, ok := raw.(retentionv1.ImageRetentionPluginServiceClient)
	if !ok {
		return nil, fmt.Errorf("it serves %T", raw)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := api.Keep(ctx, &retentionv1.KeepRequest{Images: images}, grpc.MaxCallRecvMsgSize(maxMessage),
		grpc.MaxCallSendMsgSize(maxMessage))
	switch code := status.Code(err); {
	// The plugin knows the deadline too, and may end the call a moment before it has passed here.
	case ctx.Err() != nil || code == codes.DeadlineExceeded || code == codes.Canceled:
		return nil, fmt.Errorf("no answer within %v", answerTimeout)
	case err != nil:
		return nil, errors.New(status.Convert(err).Message())
	}
	return answer.GetIds(), nil
}

// logWriter gives what the plugin writes to its standard error to imagegc's log.
type logWriter struct{ log *slog.Logger }

func (w *logWriter) Write(b []byte) (int, error) {
	w.log.Info("image retention plugin says", logkey.Line, string(bytes.TrimSpace(b)))
	return len(b), nil
}
