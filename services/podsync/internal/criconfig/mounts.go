package criconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

const etcHosts = "/etc/hosts"

// SubPaths makes a path in a volume present, and binds it to a place where no container can exchange it.
type SubPaths interface {
	SubPath(ctx context.Context, s volumes.SubPath) (string, error)
}

// volumeMounts are the container's mounts of the pod's volumes.
func (b *Builder) volumeMounts(ctx context.Context, p *v1.Pod, c *v1.Container, in *ContainerInput,
	e *environment) ([]*runtimeapi.Mount, error) {
	mounts := []*runtimeapi.Mount{}
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		mounted, ok := in.Volumes[m.Name]
		if !ok || mounted.Device != "" {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, c.Name)
		}
		path, err := subPath(m, e)
		if err != nil {
			return nil, err
		}
		image := in.ImageVolumes[m.Name]
		var source, pathInImage string
		if image != nil {
			pathInImage, err = path, volumes.CheckSubPath(path)
		} else {
			source, err = b.source(ctx, p, c, i, mounted, path)
		}
		if err != nil {
			return nil, err
		}
		propagation, err := propagationOf(m)
		if err != nil {
			return nil, err
		}
		recursive, err := recursiveReadOnly(m, b.Node.RecursiveReadOnly != nil && b.Node.RecursiveReadOnly(p))
		if err != nil {
			return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
		}
		target := m.MountPath
		if !filepath.IsAbs(target) {
			target = "/" + target
		}
		mounts = append(mounts, &runtimeapi.Mount{
			HostPath:          source,
			Image:             image,
			ImageSubPath:      pathInImage,
			ContainerPath:     target,
			Readonly:          m.ReadOnly || mounted.ReadOnly,
			SelinuxRelabel:    mounted.SELinuxRelabel && b.Node.SELinux,
			Propagation:       propagation,
			RecursiveReadOnly: recursive,
		})
	}
	return mounts, nil
}

// subPath is the path in the volume that is mounted, empty for all of it.
func subPath(m *v1.VolumeMount, e *environment) (string, error) {
	if m.SubPathExpr == "" {
		return m.SubPath, nil
	}
	return e.expandPath(m.SubPathExpr)
}

// source is what the container's mount of that index shows: the volume, or a path in it.
func (b *Builder) source(ctx context.Context, p *v1.Pod, c *v1.Container, index int, mounted volumes.Mounted,
	path string) (string, error) {
	if path == "" {
		return mounted.HostPath, nil
	}
	return b.SubPaths.SubPath(ctx, volumes.SubPath{
		Pod: p, Volume: c.VolumeMounts[index].Name, Container: c.Name, Index: index, Root: mounted.HostPath, Path: path,
	})
}

func propagationOf(m *v1.VolumeMount) (runtimeapi.MountPropagation, error) {
	if m.MountPropagation == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *m.MountPropagation {
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *m.MountPropagation)
}

func recursiveReadOnly(m *v1.VolumeMount, supported bool) (bool, error) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !m.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", m.Name)
	}
	if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
		return false,
			fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q",
				m.Name, *m.MountPropagation)
	}
	switch *m.RecursiveReadOnly {
	case v1.RecursiveReadOnlyIfPossible:
		return supported, nil
	case v1.RecursiveReadOnlyEnabled:
		if !supported {
			return false,
				fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime",
					m.Name)
		}
		return true, nil
	}
	return false, fmt.Errorf("unknown recursive read-only mode %q", *m.RecursiveReadOnly)
}

// hostsMount writes the pod's hosts file and returns its mount, nil when the container
// mounts one itself or the pod has no address.
func hostsMount(p *v1.Pod, c *v1.Container, podIPs []string, n *Node) (*runtimeapi.Mount, error) {
	if len(podIPs) == 0 && !p.Spec.HostNetwork {
		return nil, nil
	}
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == etcHosts {
			return nil, nil
		}
	}
	var text []byte
	if p.Spec.HostNetwork {
		own, err := os.ReadFile(n.HostsFile)
		if err != nil {
			return nil, fmt.Errorf("read the node's hosts file: %w", err)
		}
		text = nodeHosts(own, p.Spec.HostAliases)
	} else {
		hostname, domain, err := Hostname(p, n.ClusterDomain)
		if err != nil {
			return nil, err
		}
		text = podHosts(podIPs, hostname, domain, p.Spec.HostAliases)
	}
	path := filepath.Join(n.PodDir(p.UID), "etc-hosts")
	if err := writeInPlace(path, text, 0o644); err != nil {
		return nil, fmt.Errorf("write the pod's hosts file: %w", err)
	}
	return &runtimeapi.Mount{HostPath: path, ContainerPath: etcHosts, SelinuxRelabel: n.SELinux}, nil
}

// writeInPlace writes a file that running containers may have mounted. It must stay the same file, and is only written
// if its text differs.
func writeInPlace(path string, text []byte, mode os.FileMode) error {
	switch same, err := holds(path, text); {
	case err != nil:
		return err
	case !same:
		if err := os.WriteFile(path, text, mode); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode) // whatever the umask took
}

// holds reports whether a file has the text. It reads no more than it expects: root in a container may have made the
// file as large as the file system allows.
func holds(path string, text []byte) (bool, error) {
	f, err := regularfile.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // only read
	old, err := io.ReadAll(io.LimitReader(f, int64(len(text))+1))
	return bytes.Equal(old, text), err
}

func podHosts(podIPs []string, hostname, domain string, aliases []v1.HostAlias) []byte {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	names := hostname
	if domain != "" {
		names = hostname + "." + domain + "\t" + hostname
	}
	for _, ip := range podIPs {
		b.WriteString(ip + "\t" + names + "\n")
	}
	b.WriteString(aliasLines(aliases))
	return []byte(b.String())
}

func nodeHosts(own []byte, aliases []v1.HostAlias) []byte {
	return []byte("# Kubernetes-managed hosts file (host network).\n" + string(own) + aliasLines(aliases))
}

func aliasLines(aliases []v1.HostAlias) string {
	if len(aliases) == 0 {
		return ""
	}
	var lines strings.Builder // a pod may have ten thousands of them
	lines.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		lines.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
	}
	return lines.String()
}

// terminationLogMount makes the file that the container's termination message goes into,
// one a start, and returns its mount; nil when the container wants none.
func terminationLogMount(p *v1.Pod, c *v1.Container, n *Node) (*runtimeapi.Mount, error) {
	if c.TerminationMessagePath == "" {
		return nil, nil
	}
	dir := filepath.Join(n.PodDir(p.UID), "containers", c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the folder of the termination log: %w", err)
	}
	for {
		path := filepath.Join(dir, fmt.Sprintf("%08x", rand.Uint32()))
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
		if errors.Is(err, os.ErrExist) {
			continue // an earlier start drew the same number
		}
		if err != nil {
			return nil, fmt.Errorf("make the termination log: %w", err)
		}
		// Any user of the container may write it, whatever the umask took.
		if err := errors.Join(f.Chmod(0o666), f.Close()); err != nil {
			return nil, fmt.Errorf("make the termination log: %w", err)
		}
		target := c.TerminationMessagePath
		if !filepath.IsAbs(target) {
			target = "/" + target
		}
		return &runtimeapi.Mount{HostPath: path, ContainerPath: target, SelinuxRelabel: n.SELinux}, nil
	}
}
