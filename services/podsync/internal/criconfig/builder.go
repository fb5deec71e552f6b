package criconfig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	podlogs "github.com/microlet/microlet/services/podsync/internal/logs"
	"github.com/microlet/microlet/services/podsync/internal/pod/downward"
)

// DNS forms the resolver configuration of pods.
type DNS interface {
	PodDNS(p *v1.Pod) (*runtimeapi.DNSConfig, error)
}

// Builder makes configs and the folders and files that they name. All fields but Private are needed.
// Its methods may be called by several goroutines, for one pod by one at a time.
type Builder struct {
	Node     Node
	DNS      DNS
	Objects  Objects
	Services Services
	SubPaths SubPaths
	// Private returns the names of the node agent's own folder for a pod that may not have anything of it. Nil: there is
	// none.
	Private func(p *v1.Pod) []string
}

func (b *Builder) privateFolders(p *v1.Pod) []string {
	if b.Private == nil {
		return nil
	}
	return b.Private(p)
}

// Prepare makes the folders of a pod: its data and its logs.
func (b *Builder) Prepare(p *v1.Pod) error {
	if uid := string(p.UID); uid == "" || strings.HasPrefix(uid, ".") || strings.ContainsAny(uid, "/\x00") {
		return fmt.Errorf("metadata.uid %q cannot be the name of a folder: leave it out or use a UUID", uid)
	}
	dir := b.Node.PodDir(p.UID)
	for _, path := range []string{dir, filepath.Join(dir, "volumes"), filepath.Join(dir, "plugins")} {
		if err := os.MkdirAll(path, 0o750); err != nil {
			return fmt.Errorf("make the data folder of pod %s: %w", podText(p), err)
		}
	}
	if err := os.MkdirAll(b.Node.PodLogsDir, 0o755); err != nil {
		return fmt.Errorf("make the folder of logs: %w", err)
	}
	logs := PodLogDir("", p.Namespace, p.Name, p.UID)
	if err := podlogs.MakeFolder(b.Node.PodLogsDir, logs, b.Node.LogsGroup); err != nil {
		return fmt.Errorf("make the log folder of pod %s: %w", podText(p), err)
	}
	return nil
}

// Sandbox returns the config of a pod's sandbox. It reads the node's resolv.conf and
// writes nothing.
func (b *Builder) Sandbox(p *v1.Pod, in SandboxInput) (*runtimeapi.PodSandboxConfig, error) {
	dns, err := b.DNS.PodDNS(p)
	if err != nil {
		return nil, err
	}
	in.DNS = dns
	return Sandbox(p, in, &b.Node)
}

// Container returns the config of a container that is about to be created, and makes its
// log folder, its pod's hosts file, its termination log and the file of its long annotations. The error's text is what
// the container's status shows as CreateContainerConfigError.
func (b *Builder) Container(ctx context.Context, p *v1.Pod, c *v1.Container,
	in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	e, err := b.environment(ctx, p, c, downward.Addresses{PodIPs: in.PodIPs, HostIPs: b.Node.hostIPs()}, in.Volumes)
	if err != nil {
		return nil, err
	}
	if err := checkGranted(in.Granted, b.privateFolders(p)); err != nil {
		return nil, err
	}
	if err := e.grant(in.Granted.GetEnv()); err != nil {
		return nil, err
	}
	mounts, err := b.volumeMounts(ctx, p, c, &in, e)
	if err != nil {
		return nil, err
	}
	config, err := container(p, c, &in, e, mounts, &b.Node)
	if err != nil {
		return nil, err
	}
	addGranted(config, in.Granted)
	// Files come last, so that a container that cannot be leaves none behind.
	logs := filepath.Join(PodLogDir("", p.Namespace, p.Name, p.UID), c.Name)
	if err := podlogs.MakeFolder(b.Node.PodLogsDir, logs, b.Node.LogsGroup); err != nil {
		return nil, fmt.Errorf("create container log directory for container %s failed: %w", c.Name, err)
	}
	hosts, err := hostsMount(p, c, in.PodIPs, &b.Node)
	if err != nil {
		return nil, err
	}
	termination, err := terminationLogMount(p, c, &b.Node)
	if err != nil {
		return nil, err
	}
	if err := ShortenAnnotations(b.Node.podsDir(), p.UID, c.Name, config.Annotations); err != nil {
		return nil, err
	}
	for _, m := range []*runtimeapi.Mount{hosts, termination} {
		if m != nil {
			config.Mounts = append(config.Mounts, m)
		}
	}
	mapOwners(config)
	return config, nil
}

// LinkLogs makes the link that collectors follow to the log of a container that runs. A
// container without a log file gets none.
func (b *Builder) LinkLogs(p *v1.Pod, c *v1.Container, restartCount int32, id string) error {
	if b.Node.ContainerLogsDir == "" {
		return nil
	}
	log := filepath.Join(PodLogDir(b.Node.PodLogsDir, p.Namespace, p.Name, p.UID), LogPath(c.Name, restartCount))
	if there, err := podlogs.Exists(b.Node.PodLogsDir, log); !there {
		return err
	}
	if err := os.MkdirAll(b.Node.ContainerLogsDir, 0o755); err != nil {
		return fmt.Errorf("make the folder of log links: %w", err)
	}
	link := LogLink(b.Node.ContainerLogsDir, p.Namespace, p.Name, c.Name, id)
	if err := os.Symlink(log, link); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("link the log of container %s: %w", c.Name, err)
	}
	return nil
}
