package scene

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/compose/e2e/internal/machine"
	"github.com/microlet/microlet/compose/rig"
)

// LeavesNothing waits until nothing on the machine speaks of these pods any more. The garbage
// collection of dead containers comes around once a minute, and may find one that it has to try again.
func (s *Scene) LeavesNothing(pods []*corev1.Pod) {
	s.T.Helper()
	begin := time.Now()
	Await(s.T, time.Minute+Patience, "a clean machine", func() error {
		left, err := s.Traces(pods)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%d things are left:\n%s", len(left), strings.Join(left[:min(len(left), 40)], "\n"))
		}
		return nil
	})
	s.T.Logf("%d pods left nothing, %s after they were gone from the API", len(pods), Milliseconds(time.Since(begin)))
}

// LeavesTraces is the positive control of LeavesNothing: of pods that run it must find all kinds.
func (s *Scene) LeavesTraces(pods []*corev1.Pod) {
	s.T.Helper()
	found, err := s.Traces(pods)
	if err != nil {
		s.T.Fatal(err)
	}
	text := "\n" + strings.Join(found, "\n")
	for _, kind := range []string{"sandbox ", "container ", "cgroup ", "mount ", "pod folder ", "log folder ",
		"address reservation "} {
		if !strings.Contains(text, "\n"+kind) {
			s.T.Errorf("of pods that run the search for leftovers finds no %q, only:%s", kind, text)
		}
	}
	namespaces, err := s.networkNamespaces()
	if err != nil || len(namespaces) == 0 {
		s.T.Errorf("the search for network namespaces finds %d: %v", len(namespaces), err)
	}
	known, err := s.knownNamespaces()
	if err != nil {
		s.T.Fatal(err)
	}
	if !slices.ContainsFunc(namespaces, func(path string) bool { return known[path] }) {
		s.T.Errorf("none of the namespaces %q is one that the runtime says that its sandboxes have: %v", namespaces,
			known)
	}
	if ports, err := s.bridgePorts(); err != nil || ports == 0 {
		s.T.Errorf("the search for links at the bridge finds %d: %v", ports, err)
	}
}

// Traces lists what is left of pods, and of whatever no pod of the node owns.
func (s *Scene) Traces(pods []*corev1.Pod) ([]string, error) {
	var left []string
	uids, names, ips := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range pods {
		uids[string(p.UID)], names[p.Name] = true, true
		if !p.Spec.HostNetwork {
			ips[p.Status.PodIP] = true
		}
	}
	living := map[string]bool{} // containers and sandboxes of other pods
	err := s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(s.T.Context(), 20*time.Second)
		defer cancel()
		sandboxes, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		for _, b := range sandboxes.GetItems() {
			if living[b.GetId()] = true; uids[b.GetMetadata().GetUid()] {
				left = append(left,
					fmt.Sprintf("sandbox %s of %s: %s", b.GetId(), b.GetMetadata().GetName(), b.GetState()))
			}
		}
		containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		for _, b := range containers.GetContainers() {
			if living[b.GetId()] = true; uids[b.GetLabels()["io.kubernetes.pod.uid"]] {
				left = append(left,
					fmt.Sprintf("container %s of %s: %s", b.GetId(), b.GetLabels()["io.kubernetes.pod.name"],
						b.GetState()))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	cgroups, err := s.cgroups()
	if err != nil {
		return nil, err
	}
	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}
	for what, paths := range map[string][]string{"cgroup ": cgroups, "mount ": mounts} {
		for _, path := range paths {
			if mentions(path, uids) || orphaned(path, living) {
				left = append(left, what+path)
			}
		}
	}
	for what, dir := range map[string]string{
		"pod folder ": filepath.Join(s.RootDir(), "pods"),
		"log folder ": s.PodLogsDir(),
		"log link ":   "/var/log/containers",
	} {
		files, err := s.FileNames(dir)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if mentions(f, uids) || what == "log link " && mentions(f, names) && strings.Contains(f, "_"+s.Namespace+"_") {
				left = append(left, what+f)
			}
		}
	}
	network, err := s.networkTraces(ips)
	if err != nil {
		return nil, err
	}
	left = append(left, network...)
	if s.OnMachine() {
		orphaned, err := s.orphanedNetwork(living)
		if err != nil {
			return nil, err
		}
		left = append(left, orphaned...)
	}
	slices.Sort(left)
	return left, nil
}

// orphanedNetwork lists what the network plugins keep on the node's own machine for sandboxes that the runtime does not
// know: addresses, with the sandboxes that had them, and results.
func (n *Node) orphanedNetwork(living map[string]bool) ([]string, error) {
	reserved, err := n.reservations()
	if err != nil {
		return nil, err
	}
	// A reservation's first line is its owner. One that was cut off has none.
	owners, err := n.LinesOnMachine("sh", "-c",
		`test ! -e "$1" || find "$1" -type f -exec awk 'FNR == 1 {print FILENAME "=" $1}' {} +`, "owners",
		rig.Reservations)
	if err != nil {
		return nil, err
	}
	owned := map[string]bool{}
	for _, line := range owners {
		path, owner, _ := strings.Cut(line, "=")
		owned[path] = living[strings.TrimSpace(owner)]
	}
	var orphaned []string
	for _, path := range reserved {
		if net.ParseIP(filepath.Base(path)) != nil && !owned[path] {
			orphaned = append(orphaned, "address of no sandbox "+path)
		}
	}
	results, err := n.FileNames("/var/lib/cni/results")
	if err != nil {
		return nil, err
	}
	for _, name := range results {
		if id := longID.FindString(name); id != "" && !living[id] {
			orphaned = append(orphaned, "network result of no sandbox "+name)
		}
	}
	return orphaned, nil
}

// networkTraces lists addresses that are still reserved, and network namespaces and links beyond
// those of the sandboxes that exist.
func (s *Scene) networkTraces(ips map[string]bool) ([]string, error) {
	var left []string
	reserved, err := s.reservations()
	if err != nil {
		return nil, err
	}
	for _, f := range reserved {
		if ips[filepath.Base(f)] {
			left = append(left, "address reservation "+f)
		}
	}
	sandboxes := 0
	err = s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(s.T.Context(), 20*time.Second)
		defer cancel()
		all, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		sandboxes = len(all.GetItems())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	namespaces, err := s.networkNamespaces()
	if err != nil {
		return nil, err
	}
	namespaces = slices.DeleteFunc(namespaces, func(path string) bool { return s.LostNamespaces[path] })
	if len(namespaces) > sandboxes {
		left = append(left, fmt.Sprintf("%d network namespaces for %d sandboxes", len(namespaces), sandboxes))
	}
	ports, err := s.bridgePorts()
	if err != nil {
		return nil, err
	}
	if ports > sandboxes+len(s.LostNamespaces) {
		left = append(left, fmt.Sprintf("%d links at the bridge for %d sandboxes", ports, sandboxes))
	}
	return left, nil
}

// networkNamespaces are those that the runtime keeps for its sandboxes.
func (s *Scene) networkNamespaces() ([]string, error) {
	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mounts, func(m string) bool { return filepath.Base(filepath.Dir(m)) != "netns" }), nil
}

// KillRuntime kills the runtime and starts it again after a pause. containerd makes a sandbox's network namespace
// before it stores anything of the sandbox (internal/cri/server/sandbox_run.go): if containerd is killed in between,
// the namespace is lost, under any node agent. Exactly those are kept in mind, and no leftovers.
func (s *Scene) KillRuntime(pause time.Duration) {
	s.T.Helper()
	if err := s.Kill(s.T.Context(), rig.Containerd); err != nil {
		s.T.Fatal(err)
	}
	there, err := s.networkNamespaces()
	if err != nil {
		s.T.Fatal(err)
	}
	time.Sleep(pause)
	if err := s.StartContainerd(s.T.Context()); err != nil {
		s.T.Fatal(err)
	}
	known, err := s.knownNamespaces()
	if err != nil {
		s.T.Fatal(err)
	}
	for _, path := range there {
		if !known[path] {
			s.LostNamespaces[path] = true
		}
	}
}

// knownNamespaces are the network namespaces of the sandboxes that the runtime knows.
func (s *Scene) knownNamespaces() (map[string]bool, error) {
	known := map[string]bool{}
	err := s.CRI(func(c runtimeapi.RuntimeServiceClient) error {
		ctx, cancel := context.WithTimeout(s.T.Context(), 30*time.Second)
		defer cancel()
		all, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		for _, b := range all.GetItems() {
			answer, err := c.PodSandboxStatus(ctx,
				&runtimeapi.PodSandboxStatusRequest{PodSandboxId: b.GetId(), Verbose: true})
			if status.Code(err) == codes.NotFound {
				continue // removed since, with its namespace
			}
			if err != nil {
				return fmt.Errorf("read sandbox %s: %w", b.GetId(), err)
			}
			var info struct {
				SandboxMetadata struct{ Metadata struct{ NetNSPath string } }
			}
			if err := json.Unmarshal([]byte(answer.GetInfo()["info"]), &info); err != nil {
				return fmt.Errorf("the runtime's verbose answer: %w", err)
			}
			known[info.SandboxMetadata.Metadata.NetNSPath] = true
		}
		return nil
	})
	return known, err
}

// cgroups are those of pods and below, and mounts those of the node's runtime and agent.
func (s *Scene) cgroups() ([]string, error) {
	if s.OnMachine() {
		return s.LinesOnMachine("find", "/sys/fs/cgroup", "-mindepth", "1", "-type", "d")
	}
	return machine.CgroupsBelow(s.CgroupRoot(), func(path string) bool { return path == "rig" })
}

func (s *Scene) mounts() ([]string, error) {
	if s.OnMachine() {
		return s.LinesOnMachine("findmnt", "--list", "--noheadings", "--output=TARGET")
	}
	mounts, err := machine.MountsBelow(filepath.Dir(s.RuntimeDir()))
	if err != nil {
		return nil, err
	}
	more, err := machine.MountsBelow(s.Dir())
	// A volume of the CSI driver is the driver's until its claim is deleted, and staged while any pod has it: see
	// LeavesNoVolume.
	staged := filepath.Join(s.RootDir(), "plugins", "kubernetes.io", "csi")
	more = slices.DeleteFunc(more, func(path string) bool {
		return strings.HasPrefix(path, s.CSIVolumes()+"/") || strings.HasPrefix(path, staged+"/")
	})
	return append(mounts, more...), err
}

// FileNames are what is in a folder of the node.
func (n *Node) FileNames(dir string) ([]string, error) {
	if n.OnMachine() {
		return n.LinesOnMachine("sh", "-c", `test ! -e "$1" || ls -A "$1"`, "ls", dir)
	}
	return machine.Names(dir)
}

// reservations are the files that reserve pods' addresses.
func (n *Node) reservations() ([]string, error) {
	if n.OnMachine() {
		return n.LinesOnMachine("sh", "-c", `test ! -e "$1" || find "$1" -type f`, "find", rig.Reservations)
	}
	return filepath.Glob(filepath.Join(n.Dir(), "etc/containerd/ipam/*/*"))
}

// bridgePorts counts the links at the instance's bridge, which is the one that has the node's address.
func (s *Scene) bridgePorts() (int, error) {
	if s.OnMachine() {
		return s.bridgePortsThere()
	}
	links, err := netlink.LinkList()
	if err != nil {
		return 0, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			continue // it has just gone
		}
		if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.String() == s.NodeIP() }) {
			continue
		}
		count := 0
		for _, other := range links {
			if other.Attrs().MasterIndex == l.Attrs().Index {
				count++
			}
		}
		return count, nil
	}
	return 0, fmt.Errorf("no link has the node's address %s: %w", s.NodeIP(), os.ErrNotExist)
}

func mentions(path string, words map[string]bool) bool {
	for w := range words {
		if w != "" && (strings.Contains(path, w) || strings.Contains(path, strings.ReplaceAll(w, "-", "_"))) {
			return true
		}
	}
	return false
}

// orphaned reports whether a path names a container that the runtime does not know.
func orphaned(path string, living map[string]bool) bool {
	for part := range strings.SplitSeq(path, "/") {
		// systemd's name of a container's cgroup.
		part = strings.TrimSuffix(strings.TrimPrefix(part, "cri-containerd-"), ".scope")
		if len(part) == 64 && strings.Trim(part, "0123456789abcdef") == "" && !living[part] {
			return true
		}
	}
	return false
}

// longID is an ID of the runtime in the name of a file.
var longID = regexp.MustCompile(`[0-9a-f]{64}`)
