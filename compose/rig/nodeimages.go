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
	helper, err := buildOnly(ctx, o, build.NodeHelper)
	if err != nil {
		return err
	}
	maps.Copy(programs, helper)
	tools := map[string]string{}
	for _, tool := range []string{"iptables", "mount", "umount"} {
		if tools[tool], err = exec.LookPath(tool); err != nil {
			return fmt.Errorf("write images: %w", err)
		}
	}
	return images.WriteNode(ctx, w, images.NodeInput{
		Busybox: build.Busybox(), Tools: tools, Layout: layouts[0], Programs: programs, Microlet: o.Microlet,
	}, build.CNIPlugins)
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
