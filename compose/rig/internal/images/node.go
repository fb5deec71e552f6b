package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// NodeInput is what the images of the rig's own programs are made of, for a rig of containers.
type NodeInput struct {
	Busybox  string            // a static busybox
	Tools    map[string]string // the machine's iptables, mount and umount; their libraries are taken with them
	Layout   string            // the OCI layout that Build made, for the image that pushes it
	Programs map[string]string // the paths of built programs, by name
	Microlet string            // the microlet executable
}

// LayoutPath is the folder of the OCI layout in the image of the registry.
const LayoutPath = "/images"

// microletImage is the image of the node agent. Those of the rig are named nodePrefix and their main program.
const (
	microletImage = "microlet"
	nodePrefix    = "microlet-rig/"
)

// nodeImage says what is in an image, besides the common base.
type nodeImage struct {
	programs []string // in /usr/local/bin
	cni      []string // in /opt/cni/bin
	tools    []string // of the machine, in /usr/bin
	iptables bool
	layout   bool
	optional bool // its programs are built on demand
}

// nodeImages are those of the rig's programs, by the names in compose.yaml. It leaves out an image if its programs were
// not built.
func nodeImages(plugins []string) map[string]nodeImage {
	return map[string]nodeImage{
		"node":                    {iptables: true},
		"registry":                {programs: []string{"crane"}, layout: true},
		"etcd":                    {programs: []string{"etcd"}},
		"kube-apiserver":          {programs: []string{"kube-apiserver"}},
		"kube-controller-manager": {programs: []string{"kube-controller-manager"}},
		"kube-scheduler":          {programs: []string{"kube-scheduler"}},
		"kubectl":                 {programs: []string{"kubectl"}},
		"containerd": {
			programs: []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"}, cni: plugins, iptables: true,
		},
		"kubelet":    {programs: []string{"kubelet"}, tools: []string{"mount", "umount"}, iptables: true, optional: true},
		"prometheus": {programs: []string{"prometheus"}, optional: true},
		"dashboard":  {programs: []string{"dashboard"}, optional: true},
	}
}

// WriteNode writes an archive of the images that compose.yaml runs, as "docker load" reads it. Each has a layer for
// what all have and one for each of its programs, so that nothing is stored twice.
func WriteNode(ctx context.Context, w io.Writer, in NodeInput, plugins []string) error {
	b := nodeBuilder{in: in, layers: map[string]v1.Layer{}}
	all, err := b.all(ctx, nodeImages(plugins))
	if err != nil {
		return err
	}
	made := map[name.Tag]v1.Image{}
	for image, layers := range all {
		tag, err := name.NewTag(image+":latest", name.WithDefaultRegistry(""))
		if err != nil {
			return fmt.Errorf("make image %s: %w", image, err)
		}
		if made[tag], err = imageOf(layers, v1.Config{Env: []string{pathVariable}}); err != nil {
			return err
		}
	}
	if err := tarball.MultiWrite(made, w); err != nil {
		return fmt.Errorf("write images: %w", err)
	}
	return nil
}

// PushMicrolet pushes the image of the node agent alone. Its name is a label of it, so that each name has an image of
// its own.
func PushMicrolet(ctx context.Context, in NodeInput, registry, tag string) error {
	b := nodeBuilder{in: in, layers: map[string]v1.Layer{}}
	layers, err := b.microlet(ctx)
	if err != nil {
		return fmt.Errorf("make image %s: %w", tag, err)
	}
	config := v1.Config{Env: []string{pathVariable}, Labels: map[string]string{"org.opencontainers.image.ref.name": tag}}
	img, err := imageOf(layers, config)
	if err != nil {
		return err
	}
	pusher, end, err := newPusher()
	if err != nil {
		return err
	}
	defer end()
	return pushOne(ctx, pusher, img, registry, []string{tag})
}

// nodeBuilder makes each layer once.
type nodeBuilder struct {
	in     NodeInput
	layers map[string]v1.Layer
}

// all are the layers of every image, by its name.
func (b *nodeBuilder) all(ctx context.Context, images map[string]nodeImage) (map[string][]v1.Layer, error) {
	base, err := b.base(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string][]v1.Layer{}
	for short, image := range images {
		if image.optional && b.in.Programs[image.programs[0]] == "" {
			continue
		}
		own, err := b.of(ctx, image)
		if err != nil {
			return nil, fmt.Errorf("make image %s: %w", short, err)
		}
		all[nodePrefix+short] = append([]v1.Layer{base}, own...)
	}
	if all[microletImage], err = b.microlet(ctx); err != nil {
		return nil, fmt.Errorf("make image %s: %w", microletImage, err)
	}
	return all, nil
}

// base is the layer of all of the rig's images: busybox and rig-node.
func (b *nodeBuilder) base(ctx context.Context) (v1.Layer, error) {
	busybox, err := os.ReadFile(b.in.Busybox)
	if err != nil {
		return nil, fmt.Errorf("make images: busybox: %w", err)
	}
	applets, err := listApplets(ctx, b.in.Busybox)
	if err != nil {
		return nil, err
	}
	helper, err := b.program("rig-node")
	if err != nil {
		return nil, err
	}
	return plainLayer(append(baseFiles(busybox, applets), helper))
}

// microlet are the layers of the node agent's image: iptables, mount and umount, which podsync calls, and itself.
func (b *nodeBuilder) microlet(ctx context.Context) ([]v1.Layer, error) {
	program, err := linked(ctx, b.in.Microlet, "usr/local/bin/microlet")
	if err != nil {
		return nil, err
	}
	tools, err := b.of(ctx, nodeImage{tools: []string{"mount", "umount"}, iptables: true})
	if err != nil {
		return nil, err
	}
	own, err := plainLayer(append(program,
		file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/false\n")),
		file("etc/group", 0o644, []byte("root:x:0:\n")),
		folder("tmp", 0o1777),
	))
	return append(tools, own), err
}

// of are the layers of an image, besides the base.
func (b *nodeBuilder) of(ctx context.Context, image nodeImage) ([]v1.Layer, error) {
	var layers []v1.Layer
	add := func(key string, make func() ([]entry, error)) error {
		if _, ok := b.layers[key]; !ok {
			entries, err := make()
			if err != nil {
				return err
			}
			if b.layers[key], err = plainLayer(entries); err != nil {
				return err
			}
		}
		layers = append(layers, b.layers[key])
		return nil
	}
	if image.iptables {
		if err := add("iptables", func() ([]entry, error) { return iptables(ctx, b.in.Tools["iptables"]) }); err != nil {
			return nil, err
		}
	}
	for _, tool := range image.tools {
		err := add(tool, func() ([]entry, error) { return linked(ctx, b.in.Tools[tool], "usr/bin/"+tool) })
		if err != nil {
			return nil, err
		}
	}
	for _, program := range image.programs {
		err := add(program, func() ([]entry, error) {
			return linked(ctx, b.in.Programs[program], "usr/local/bin/"+program)
		})
		if err != nil {
			return nil, err
		}
	}
	if len(image.cni) > 0 {
		if err := add("cni", func() ([]entry, error) { return b.plugins(image.cni) }); err != nil {
			return nil, err
		}
	}
	if image.layout {
		if err := add("layout", func() ([]entry, error) { return tree(b.in.Layout, LayoutPath) }); err != nil {
			return nil, err
		}
	}
	return layers, nil
}

func (b *nodeBuilder) program(program string) (entry, error) {
	text, err := os.ReadFile(b.in.Programs[program])
	if err != nil {
		return entry{}, fmt.Errorf("program %s: %w", program, err)
	}
	return file("usr/local/bin/"+program, 0o755, text), nil
}

func (b *nodeBuilder) plugins(names []string) ([]entry, error) {
	var entries []entry
	for _, plugin := range names {
		e, err := b.program(plugin)
		if err != nil {
			return nil, err
		}
		e.path = "opt/cni/bin/" + plugin
		entries = append(entries, e)
	}
	return entries, nil
}

// tree is all below a folder, elsewhere.
func tree(from, to string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		entries = append(entries, file(strings.TrimPrefix(filepath.Join(to, rel), "/"), 0o644, text))
		return nil
	})
	return entries, err
}

// plainLayer is a layer that is hardly compressed: it goes to a daemon of the same machine.
func plainLayer(entries []entry) (v1.Layer, error) {
	text, err := archive(entries)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	l, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return l, nil
}
