package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	_ "embed"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// Names of the images, as upstream's tests of Kubernetes 1.37 have them.
const (
	Pause   = "registry.k8s.io/pause:3.10.2"
	Busybox = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
)

// names are all names of each image.
var names = map[string][]string{
	"pause": {Pause, "registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.9",
		"registry.k8s.io/pause:latest"},
	"busybox": {
		Busybox, "docker.io/library/busybox:latest", "docker.io/library/busybox:1.37", "docker.io/library/busybox:1.36",
		"registry.k8s.io/e2e-test-images/busybox:1.29-4", "registry.k8s.io/e2e-test-images/busybox:1.36.1-1",
		"registry.k8s.io/busybox:latest",
	},
	"agnhost": {Agnhost, "registry.k8s.io/e2e-test-images/agnhost:2.55", "registry.k8s.io/e2e-test-images/agnhost:latest"},
}

// format is part of the cache key: raise it when the same inputs shall give
// other images.
const format = "3"

//go:embed pause/pause.c
var pauseSource []byte

// Input is what the images are made of.
type Input struct {
	Busybox string // a static busybox executable
	Agnhost string // the agnhost executable; "" for the layout that has no such image
}

// Build returns the path of an OCI layout below cache that holds all images of
// what is given; it makes it if it is not there.
func Build(ctx context.Context, cache string, in Input) (string, error) {
	busybox, err := os.ReadFile(in.Busybox)
	if err != nil {
		return "", fmt.Errorf("make images: busybox: %w", err)
	}
	var agnhost []byte
	if in.Agnhost != "" {
		if agnhost, err = os.ReadFile(in.Agnhost); err != nil {
			return "", fmt.Errorf("make images: agnhost: %w", err)
		}
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(format), pauseSource, busybox, agnhost} {
		_, _ = fmt.Fprintln(h, len(part))
		_, _ = h.Write(part)
	}
	return makeLayout(filepath.Join(cache, "images", hex.EncodeToString(h.Sum(nil))[:16]),
		func() (map[string]v1.Image, error) {
			applets, err := listApplets(ctx, in.Busybox)
			if err != nil {
				return nil, err
			}
			pause, err := compile(ctx, "pause", pauseSource)
			if err != nil {
				return nil, err
			}
			return makeImages(pause, busybox, agnhost, applets)
		})
}

// makeLayout writes an OCI layout to the folder, unless it is there.
func makeLayout(dir string, make func() (map[string]v1.Image, error)) (string, error) {
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	made, err := make()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("make images: %w", err)
	}
	// Several rigs may do this at once: each has its own half, the first to
	// finish wins, and all halves are the same.
	half, err := os.MkdirTemp(filepath.Dir(dir), ".half-")
	if err != nil {
		return "", fmt.Errorf("make images: %w", err)
	}
	defer func() { _ = os.RemoveAll(half) }()
	index, err := layout.Write(half, empty.Index)
	if err != nil {
		return "", fmt.Errorf("make images: %w", err)
	}
	for _, image := range slices.Sorted(maps.Keys(made)) {
		err := index.AppendImage(made[image], layout.WithAnnotations(map[string]string{nameAnnotation: image}))
		if err != nil {
			return "", fmt.Errorf("make image %s: %w", image, err)
		}
	}
	if err := os.Rename(half, dir); err != nil {
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
		return "", fmt.Errorf("make images: %w", err)
	}
	return dir, nil
}

const nameAnnotation = "org.opencontainers.image.ref.name"

const pathVariable = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var agnhostConfig = v1.Config{
	Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{pathVariable},
	ExposedPorts: map[string]struct{}{"80/tcp": {}, "8080/tcp": {}, "8081/tcp": {}, "9376/tcp": {}},
}

func makeImages(pause, busybox, agnhost []byte, applets []string) (map[string]v1.Image, error) {
	made := map[string]v1.Image{}
	var err error
	made["pause"], err = image([]entry{file("pause", 0o755, pause)},
		v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"})
	if err != nil {
		return nil, err
	}
	base := baseFiles(busybox, applets)
	made["busybox"], err = image(base, v1.Config{Cmd: []string{"sh"}, Env: []string{pathVariable}})
	if err != nil {
		return nil, err
	}
	if len(agnhost) == 0 {
		return made, nil
	}
	made["agnhost"], err = image(append(slices.Clone(base), file("agnhost", 0o755, agnhost)), agnhostConfig)
	if err != nil {
		return nil, err
	}
	return made, nil
}

// baseFiles are busybox, its applets, and what programs expect of a system.
func baseFiles(busybox []byte, applets []string) []entry {
	entries := []entry{
		file("bin/busybox", 0o755, busybox),
		file("etc/passwd", 0o644,
			[]byte("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\n"+
				"nobody:x:65534:65534:nobody:/home:/bin/false\n")),
		file("etc/group", 0o644, []byte("root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n")),
		folder("root", 0o700),
		folder("home", 0o755),
		folder("tmp", 0o1777),
		folder("var/tmp", 0o1777),
	}
	for _, applet := range applets {
		if applet != "busybox" {
			entries = append(entries, link("bin/"+applet, "busybox"))
		}
	}
	return entries
}

func image(entries []entry, config v1.Config) (v1.Image, error) {
	l, err := layer(entries)
	if err != nil {
		return nil, err
	}
	return imageOf([]v1.Layer{l}, config)
}

func imageOf(layers []v1.Layer, config v1.Config) (v1.Image, error) {
	made, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	settings, err := made.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	settings = settings.DeepCopy()
	settings.OS, settings.Architecture = "linux", runtime.GOARCH
	settings.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	settings.Config = config
	made, err = mutate.ConfigFile(made, settings)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	return made, nil
}

// listApplets asks busybox for its applets.
func listApplets(ctx context.Context, busybox string) ([]string, error) {
	out, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list applets of %s: %w", busybox, err)
	}
	applets := strings.Fields(string(out))
	slices.Sort(applets)
	return slices.Compact(applets), nil
}

// compile compiles a program of one file; static, so that its image needs
// nothing else.
func compile(ctx context.Context, program string, source []byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "rig-"+program+"-")
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", program, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.WriteFile(filepath.Join(dir, program+".c"), source, 0o600); err != nil {
		return nil, fmt.Errorf("compile %s: %w", program, err)
	}
	cmd := exec.CommandContext(ctx, "gcc", "-Os", "-Wall", "-Werror", "-static", "-s", "-Wl,--build-id=none", "-o",
		program, program+".c")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile %s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	text, err := os.ReadFile(filepath.Join(dir, program))
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", program, err)
	}
	return text, nil
}
