package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	_ "embed"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// suiteNames are the names of the images that only upstream's suite needs. Two
// of them replace a base image by one with more in it.
var suiteNames = map[string][]string{
	"suite-busybox": names["busybox"],
	"suite-agnhost": names["agnhost"],
	"suite-nginx": {"registry.k8s.io/e2e-test-images/nginx:1.27.0-2",
		"registry.k8s.io/e2e-test-images/nginx:1.28.0-2"},
	"suite-nonewprivs":        {"registry.k8s.io/e2e-test-images/nonewprivs:1.4"},
	"suite-nonroot":           {"registry.k8s.io/e2e-test-images/nonroot:1.5"},
	"suite-perl":              {"registry.k8s.io/e2e-test-images/perl:5.26"},
	"suite-glibc-dns-testing": {"registry.k8s.io/e2e-test-images/glibc-dns-testing:2.1.1"},
	"suite-ipc-utils":         {"registry.k8s.io/e2e-test-images/ipc-utils:1.4"},
	"suite-kitten":            {"registry.k8s.io/e2e-test-images/kitten:1.8"},
	"suite-nautilus":          {"registry.k8s.io/e2e-test-images/nautilus:1.8"},
	// Specs of garbage collection pull every image of the suite of the node, and remove them. No test runs these.
	"suite-unused": {
		"gcr.io/cadvisor/cadvisor:v0.47.2",
		"registry.k8s.io/e2e-test-images/node-perf/npb-ep:1.6.0",
		"registry.k8s.io/e2e-test-images/node-perf/npb-is:1.7.0",
		"registry.k8s.io/e2e-test-images/volume/nfs:1.6.0",
		"registry.k8s.io/etcd:3.7.0-0",
		"registry.k8s.io/node-problem-detector/node-problem-detector:v1.35.2",
		"docker.io/nfvpe/sriov-device-plugin:v3.1",
	},
	// A spec counts on more than 10,000 inodes that are free without the images.
	"suite-many-files": {"registry.k8s.io/e2e-test-images/node-perf/pytorch-wide-deep:1.0.0"},
	"suite-by-digest":  {StandIn},
}

// ByDigest is an image that the suite of the node names by its digest. No image that is made here has it, so the node's
// runtime is given StandIn under that name.
const (
	ByDigest = "registry.k8s.io/e2e-test-images/busybox@" +
		"sha256:a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9"
	StandIn = "registry.k8s.io/e2e-test-images/busybox:stand-in"
)

// suiteFormat is part of the cache key, as format is.
const suiteFormat = "6"

//go:embed nnp/nnp.c
var nnpSource []byte

//go:embed sh/sh.c
var shellSource []byte

//go:embed nmeter/nmeter.c
var meterSource []byte

//go:embed nginx/nginx.conf
var nginxConfig []byte

// SuiteInput is what the suite's images are made of.
type SuiteInput struct {
	Input
	// Sources is the folder test/images of upstream's source: pages and a
	// certificate that tests look for are taken from there.
	Sources string
	Out     io.Writer // progress, a line at a time
}

// What is taken from Sources, by its path there.
var suiteFiles = []string{
	"agnhost/porter/localhost.crt", "agnhost/porter/localhost.key",
	"kitten/html/kitten.jpg", "kitten/html/data.json", "nautilus/html/nautilus.jpg", "nautilus/html/data.json",
}

// BuildSuite returns the path of an OCI layout below cache that holds the
// images that upstream's end-to-end suite pulls and the base images lack. To
// be pushed after those. It makes what is not there, for which it needs root,
// debootstrap and a mirror of Debian.
func BuildSuite(ctx context.Context, cache string, in SuiteInput) (string, error) {
	base, err := makeDebian(ctx, cache, in.Out)
	if err != nil {
		return "", err
	}
	parts := map[string][]byte{
		"format":     []byte(suiteFormat),
		"nnp.c":      nnpSource,
		"sh.c":       shellSource,
		"nmeter.c":   meterSource,
		"nginx.conf": nginxConfig,
		"bash":       base.bash,
	}
	sources := map[string][]byte{}
	for _, path := range suiteFiles {
		if sources[path], err = os.ReadFile(filepath.Join(in.Sources, path)); err != nil {
			return "", fmt.Errorf("make images of the suite: %w", err)
		}
		parts["source "+path] = sources[path]
	}
	for name, path := range map[string]string{"busybox": in.Busybox, "agnhost": in.Agnhost, "debian": base.layer} {
		if parts[name], err = os.ReadFile(path); err != nil {
			return "", fmt.Errorf("make images of the suite: %s: %w", name, err)
		}
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		_, _ = fmt.Fprintln(h, name, len(parts[name]))
		_, _ = h.Write(parts[name])
	}
	return makeLayout(filepath.Join(cache, "images", "suite-"+hex.EncodeToString(h.Sum(nil))[:16]),
		func() (map[string]v1.Image, error) {
			applets, err := listApplets(ctx, in.Busybox)
			if err != nil {
				return nil, err
			}
			nnp, err := compile(ctx, "nnp", nnpSource)
			if err != nil {
				return nil, err
			}
			shell, err := compile(ctx, "sh", shellSource)
			if err != nil {
				return nil, err
			}
			meter, err := compile(ctx, "nmeter", meterSource)
			if err != nil {
				return nil, err
			}
			debian, err := tarball.LayerFromFile(base.layer)
			if err != nil {
				return nil, fmt.Errorf("read layer of Debian: %w", err)
			}
			s := suite{
				base:    base,
				debian:  debian,
				files:   sources,
				busybox: parts["busybox"],
				agnhost: parts["agnhost"],
				nnp:     nnp,
				shell:   shell,
				meter:   meter,
				applets: applets,
			}
			return s.images()
		})
}

// suite is what the suite's images consist of.
type suite struct {
	base             debianBase
	debian           v1.Layer
	files            map[string][]byte
	busybox, agnhost []byte
	nnp, shell       []byte
	meter            []byte
	applets          []string
}

func (s suite) images() (map[string]v1.Image, error) {
	env := []string{pathVariable}
	debian := v1.Config{Cmd: []string{"bash"}, Env: env}
	nonroot := debian
	nonroot.User = "1234"
	nonewprivs := v1.Config{Cmd: []string{"nnp"}, Env: env}
	nginx := v1.Config{
		Cmd:          []string{"nginx", "-g", "daemon off;"},
		Env:          env,
		ExposedPorts: map[string]struct{}{"80/tcp": {}},
		StopSignal:   "SIGQUIT",
	}
	// It makes two images of the same files.
	standIn := v1.Config{Cmd: []string{"sh"}, Env: env, Labels: map[string]string{titleLabel: StandIn}}
	unused := v1.Config{Cmd: []string{"sh"}, Env: env, Labels: map[string]string{titleLabel: "unused"}}
	page := agnhostConfig
	page.Cmd = []string{"test-webserver"}

	made := map[string]v1.Image{}
	add := func(name string, config v1.Config, layers ...v1.Layer) (err error) {
		made[name], err = imageOf(layers, config)
		return err
	}
	own := map[string][]entry{
		"suite-busybox":    s.busyboxFiles(),
		"suite-agnhost":    s.agnhostFiles(),
		"suite-nginx":      {file("etc/nginx/nginx.conf", 0o644, nginxConfig)},
		"suite-nonewprivs": {file("usr/local/bin/nnp", 0o6755, s.nnp)},
		// Upstream's is based on Alpine Linux, which the specs of image volumes read of it.
		"suite-kitten": {
			file("kitten.jpg", 0o644, s.files["kitten/html/kitten.jpg"]),
			file("data.json", 0o644, s.files["kitten/html/data.json"]),
			file("etc/os-release", 0o644, []byte("NAME=\"Alpine Linux\"\nID=alpine\n")),
		},
		"suite-nautilus": {file("nautilus.jpg", 0o644, s.files["nautilus/html/nautilus.jpg"]), file("data.json", 0o644,
			s.files["nautilus/html/data.json"])},
		"suite-many-files": manyFiles(),
	}
	layers := map[string]v1.Layer{}
	for name, entries := range own {
		l, err := layer(entries)
		if err != nil {
			return nil, err
		}
		layers[name] = l
	}
	for _, err := range []error{
		add("suite-busybox", v1.Config{Cmd: []string{"sh"}, Env: env}, layers["suite-busybox"]),
		add("suite-agnhost", agnhostConfig, s.debian, layers["suite-agnhost"]),
		add("suite-nginx", nginx, s.debian, layers["suite-nginx"]),
		add("suite-nonewprivs", nonewprivs, s.debian, layers["suite-nonewprivs"]),
		add("suite-nonroot", nonroot, s.debian),
		add("suite-perl", debian, s.debian),
		add("suite-glibc-dns-testing", debian, s.debian),
		add("suite-ipc-utils", debian, s.debian),
		add("suite-kitten", page, s.debian, layers["suite-agnhost"], layers["suite-kitten"]),
		add("suite-nautilus", page, s.debian, layers["suite-agnhost"], layers["suite-nautilus"]),
		add("suite-unused", unused, layers["suite-busybox"]),
		add("suite-many-files", unused, layers["suite-many-files"]),
		add("suite-by-digest", standIn, layers["suite-busybox"]),
	} {
		if err != nil {
			return nil, err
		}
	}
	return made, nil
}

const titleLabel = "org.opencontainers.image.title"

// manyFiles take 30,000 inodes.
func manyFiles() []entry {
	files := make([]entry, 30_000)
	for i := range files {
		files[i] = file(fmt.Sprintf("files/%d/%d", i/1000, i), 0o644, nil)
	}
	return files
}

// busyboxFiles have a shell and an nmeter of their own; sh/sh.c and
// nmeter/nmeter.c say why.
func (s suite) busyboxFiles() []entry {
	own := []entry{file("bin/bash", 0o755, s.base.bash), file("bin/sh", 0o755, s.shell),
		file("bin/nmeter", 0o755, s.meter)}
	entries := slices.DeleteFunc(baseFiles(s.busybox, s.applets), func(e entry) bool {
		return slices.ContainsFunc(own, func(o entry) bool { return o.path == e.path })
	})
	return append(entries, own...)
}

// agnhostFiles are what upstream's image has beside its packages.
func (s suite) agnhostFiles() []entry {
	passwd := slices.Concat(s.base.passwd,
		[]byte("user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"))
	group := slices.Concat(s.base.group,
		[]byte("user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"))
	return []entry{
		file("agnhost", 0o755, s.agnhost),
		link("agnhost-2", "agnhost"),
		file("usr/local/bin/nmeter", 0o755, s.meter), // upstream's stands on busybox
		file("localhost.crt", 0o644, s.files["agnhost/porter/localhost.crt"]),
		file("localhost.key", 0o644, s.files["agnhost/porter/localhost.key"]),
		file("etc/passwd", 0o644, passwd),
		file("etc/group", 0o644, group),
		folder("uploads", 0o755),
	}
}
