package rig

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os/exec"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/images"
)

// WriteImages builds what the cache lacks and writes the images that compose/compose.yaml runs, as "docker load" reads
// them: those of the rig's programs and of Options.Microlet.
func WriteImages(ctx context.Context, o Options, w io.Writer) error {
	o.Agent = AgentMicrolet
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := o.findMicrolet(); err != nil {
		return err
	}
	programs, layouts, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	tools, err := nodeTools()
	if err != nil {
		return err
	}
	helper, err := buildOnly(ctx, o, build.NodeHelper)
	if err != nil {
		return err
	}
	maps.Copy(programs, helper)
	return images.WriteNode(ctx, w, images.NodeInput{
		Busybox: build.Busybox(), Tools: tools, Layout: layouts[0], Programs: programs, Microlet: o.Microlet,
	}, build.CNIPlugins)
}

// nodeTools are the machine's programs that podsync calls.
func nodeTools() (map[string]string, error) {
	tools := map[string]string{}
	for _, tool := range []string{"iptables", "mount", "umount"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			return nil, fmt.Errorf("make images: %w", err)
		}
		tools[tool] = path
	}
	return tools, nil
}

// MicroletImage is the name, without its tag, under which PushMicrolet pushes: what "microlet" is short for.
const MicroletImage = "docker.io/library/microlet"

// PushMicrolet pushes the image of an executable of microlet to a rig's registry (host:port), as MicroletImage with
// that tag. Images of different tags are different, even of the same executable.
func PushMicrolet(ctx context.Context, executable, registry, tag string) error {
	tools, err := nodeTools()
	if err != nil {
		return err
	}
	return images.PushMicrolet(ctx, images.NodeInput{Tools: tools, Microlet: executable}, registry, MicroletImage+":"+tag)
}

// Helm builds Helm if the cache lacks it, and returns its path.
func Helm(ctx context.Context, o Options) (string, error) {
	programs, err := buildOnly(ctx, o, build.Helm)
	return programs[build.Helm], err
}

// PrometheusProgram builds Prometheus if the cache lacks it, and returns its path.
func PrometheusProgram(ctx context.Context, o Options) (string, error) {
	programs, err := buildOnly(ctx, o, build.Prometheus)
	return programs[build.Prometheus], err
}

// DockerCompose installs a Docker daemon where the machine has none, builds Docker Compose if the cache lacks it, and
// returns the path of Docker Compose.
func DockerCompose(ctx context.Context, o Options) (string, error) {
	if err := build.InstallPackages(ctx, o.Out, build.GroupCompose); err != nil {
		return "", err
	}
	programs, err := buildOnly(ctx, o, build.Compose)
	return programs[build.Compose], err
}

// buildOnly builds programs that no group has.
func buildOnly(ctx context.Context, o Options, names ...string) (build.Binaries, error) {
	tools, err := build.Locate(o.Source)
	if err != nil {
		return nil, err
	}
	cache, err := build.CacheDir()
	if err != nil {
		return nil, err
	}
	return (&build.Builder{Tools: tools, Cache: cache, Out: o.Out}).BuildOnly(ctx, names...)
}
