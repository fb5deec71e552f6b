package images

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Names returns all names under which the base images are pushed.
func Names() []string { return slices.Concat(slices.Collect(maps.Values(names))...) }

// SuiteNames returns all names under which the suite's images are pushed.
func SuiteNames() []string { return slices.Concat(slices.Collect(maps.Values(suiteNames))...) }

// Push pushes all images of the layout to the registry at that address
// (host:port, plain HTTP), under their repository and tag without the host: a
// mirror is asked for them so.
func Push(ctx context.Context, dir, registry string) error {
	path, err := layout.FromPath(dir)
	if err != nil {
		return fmt.Errorf("push images: %w", err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		return fmt.Errorf("push images: %w", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("push images: %w", err)
	}
	pusher, end, err := newPusher()
	if err != nil {
		return err
	}
	defer end()
	// One after the other: images share layers, and the registry holds what is
	// being pushed in memory.
	for _, m := range manifest.Manifests {
		short := m.Annotations[nameAnnotation]
		tags := slices.Concat(names[short], suiteNames[short])
		if strings.Contains(short, "/") {
			tags = []string{short}
		}
		if len(tags) == 0 {
			return fmt.Errorf("push images: %s holds an image %q that has no name here: remove that folder", dir, short)
		}
		img, err := index.Image(m.Digest)
		if err != nil {
			return fmt.Errorf("push image %s: %w", short, err)
		}
		if err := pushOne(ctx, pusher, img, registry, tags); err != nil {
			return err
		}
	}
	return nil
}

// newPusher returns a pusher with a transport of its own: nothing may go through a proxy of the environment.
func newPusher() (pusher *remote.Pusher, end func(), err error) {
	transport := &http.Transport{}
	if pusher, err = remote.NewPusher(remote.WithTransport(transport)); err != nil {
		return nil, nil, fmt.Errorf("push images: %w", err)
	}
	return pusher, transport.CloseIdleConnections, nil
}

func pushOne(ctx context.Context, pusher *remote.Pusher, img v1.Image, registry string, tags []string) error {
	for _, tag := range tags {
		ref, err := name.NewTag(mirrored(registry, tag), name.Insecure)
		if err != nil {
			return fmt.Errorf("push image %s: %w", tag, err)
		}
		if err := pusher.Push(ctx, ref, img); err != nil {
			return fmt.Errorf("push image %s: %w", tag, err)
		}
	}
	return nil
}

// mirrored replaces the host of an image's name by the registry.
func mirrored(registry, image string) string {
	_, rest, _ := strings.Cut(image, "/")
	return registry + "/" + rest
}
