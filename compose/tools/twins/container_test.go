package twins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/images"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

// contained is a container that is configured.
type contained struct {
	Pod      *v1.Pod
	Name     string
	Settings settings
	Restarts int32
	Image    *runtimeapi.Image
	// PodIPs are as the runtime has them, NodeIPs the node's.
	PodIPs, NodeIPs []string
	Target          string
	Volumes         map[string]volume.Mounted
	ImageVolumes    map[string]*runtimeapi.ImageSpec
	// OfImages leaves the path in an image out of mounts that are of no image.
	OfImages bool
}

// configured is what the runtime is given. Annotations are apart, and so is the hosts file that is mounted.
type configured struct {
	Err, Text   string
	Annotations map[string]string
	Hosts       string
}

var _ = register(Pair[contained, configured]{
	Name:     "container",
	Generate: drawContained,
	Upstream: kubeletContainer,
	Ours:     ourContainer,
	Branches: func(in contained, out configured) []string {
		did := append(found(out.Text, containerBranches), found(out.Hosts, hostsBranches)...)
		for _, part := range []string{"runAsNonRoot", "recursive read-only", "cannot find volume", "SubPath"} {
			if strings.Contains(out.Err, part) {
				did = append(did, "error: "+part)
			}
		}
		for annotation := range out.Annotations {
			did = append(did, annotation[strings.LastIndex(annotation, ".")+1:])
		}
		return did
	},
	Wanted: slices.Concat(names(containerBranches), names(hostsBranches), []string{
		"error: runAsNonRoot", "error: recursive read-only", "error: cannot find volume", "error: SubPath",
		"hash", "restartCount", "preStopHandler", "ports", "deletionGracePeriod", "terminationGracePeriod",
	}),
	Differences: []Difference[contained, configured]{
		{Name: "has a path in an image for images alone", As: func(in contained) (contained, bool) {
			in.OfImages = true
			return in, len(specOf(&in.Pod.Spec, in.Name).VolumeMounts) > len(in.ImageVolumes)
		}},
		{Name: "keeps long annotations in a file", Adjust: shortenAnnotations},
	},
	Break: func(_ contained, out *configured) {
		out.Text = strings.ReplaceAll(out.Text, "oom_score_adj", "cpu_quota")
	},
})

// containerBranches are parts of the message.
var containerBranches = map[string]string{
	"a command": "\ncommand:", "a mount": "\nmounts:", "a device": "\ndevices:", "an image volume": "image_sub_path:",
	"read-only": "readonly:", "read-only all the way down": "recursive_read_only:", "a propagation": "propagation:",
	"owners of its own": "uidMappings:", "a termination log": "/random", "hosts": "/etc/hosts", "a TTY": "\ntty:",
	"a stop signal": "stop_signal:", "huge pages": "hugepage_limits:", "swap": "memory.swap.max",
	"no swap of version 1": "memory_swap_limit_in_bytes:", "memory.min": "memory.min", "memory.low": "memory.low",
	"memory.high": "memory.high", "no memory.high": `"max"`, "all killed together": "memory.oom.group",
	"guaranteed": "-997", "best effort": "oom_score_adj: 1000", "a target": "target_id:", "capabilities": "capabilities:",
	"a profile of AppArmor": "apparmor_profile:", "a user": "run_as_user:", "the name of a user": "run_as_username:",
	"further groups": "supplemental_groups:", "no new privileges": "no_new_privs:", "nothing masked": "no masked paths",
}

var hostsBranches = map[string]string{"hosts of the node": "host network", "aliases": "Entries added by HostAliases"}

// shortenAnnotations puts values of more than 8 KiB where ours puts them.
func shortenAnnotations(_ contained, out *configured) bool {
	long := map[string]string{}
	for key, value := range out.Annotations {
		if len(value) > 8<<10 {
			long[key] = value
		}
	}
	if len(long) == 0 {
		return false
	}
	data, err := json.Marshal(long)
	must(err)
	out.Annotations = maps.Clone(out.Annotations)
	maps.DeleteFunc(out.Annotations, func(key, _ string) bool { return long[key] != "" })
	sum := sha256.Sum256(data)
	out.Annotations[criconfig.LongAnnotations] = hex.EncodeToString(sum[:])
	return true
}

func drawContained(s *Source) contained {
	in := contained{
		Settings: drawSettings(s), Pod: drawConfigPod(s), Restarts: int32(s.Intn(3)), Image: &runtimeapi.Image{},
		PodIPs:  OneOf(s, []string{"10.0.0.2"}, nil, []string{"10.0.0.2", "fd00::2"}),
		NodeIPs: []string{"192.168.0.1"}, Target: OneOf(s, "", "", "", "target"),
		Volumes: map[string]volume.Mounted{"gone": {HostPath: "/gone"}}, ImageVolumes: map[string]*runtimeapi.ImageSpec{},
	}
	if s.Percent(80) {
		in.Image.Uid = OneOf(s, &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 0},
			&runtimeapi.Int64Value{Value: 1 << 31})
	} else {
		in.Image.Username = OneOf(s, "", "name")
	}
	in.Name = OneOf(s, containerNames(&in.Pod.Spec)...)
	drawMounts(s, &in, specOf(&in.Pod.Spec, in.Name))
	return in
}

// drawMounts draws the volumes of the pod, and which of them the container has. At most one of these is an error.
func drawMounts(s *Source, in *contained, c *v1.Container) {
	for i := range OneOf(s, 0, 0, 1, 2, 3) {
		name := fmt.Sprint("v", i)
		v := volume.Mounted{HostPath: "/volumes/" + name, ReadOnly: s.Percent(20), SELinuxRelabel: s.Percent(30)}
		if s.Percent(15) {
			v.Group = OneOf(s, "777", "3000", "4000", "text")
		}
		if s.Percent(20) {
			v = volume.Mounted{Device: filepath.Join(deviceDir(), "link"), ReadOnly: v.ReadOnly}
			c.VolumeDevices = append(c.VolumeDevices, v1.VolumeDevice{Name: name, DevicePath: "/dev/x"})
			in.Volumes[name] = v
			continue
		}
		in.Volumes[name] = v
		m := v1.VolumeMount{Name: name, MountPath: OneOf(s, "/data", "data", "/etc/hosts"), ReadOnly: s.Percent(40)}
		m.SubPath = OneOf(s, "", "", "a", "a/b")
		if s.Percent(20) {
			in.ImageVolumes[name] = &runtimeapi.ImageSpec{Image: "sha256:" + name}
		}
		if s.Percent(30) {
			m.MountPropagation = OneOf(s, new(v1.MountPropagationNone), new(v1.MountPropagationHostToContainer),
				new(v1.MountPropagationBidirectional))
		}
		if s.Percent(15) {
			m.ReadOnly, m.MountPropagation = true, nil
			m.RecursiveReadOnly = OneOf(s, new(v1.RecursiveReadOnlyIfPossible), new(v1.RecursiveReadOnlyDisabled),
				new(v1.RecursiveReadOnlyEnabled))
		}
		c.VolumeMounts = append(c.VolumeMounts, m)
	}
	if s.Percent(2) && len(c.VolumeMounts) > 0 {
		m := &c.VolumeMounts[0]
		switch OneOf(s, "missing", "absolute", "above") {
		case "missing":
			m.Name = "missing"
		case "absolute":
			m.SubPath = "/a"
		case "above":
			m.SubPath = "a/../b"
		}
	}
	for range OneOf(s, 0, 0, 1, 2) {
		c.Command = append(c.Command, OneOf(s, "run", "$(A)", "$$"))
	}
	if s.Percent(30) {
		c.Env = []v1.EnvVar{{Name: "A", Value: "a"}} // one: the kubelet has no order of them
	}
}

// deviceDir has a link to a block device.
func deviceDir() string {
	at := takeScratch()
	defer at.giveBack()
	dir := filepath.Dir(at.root)
	if err := os.Symlink("/dev/null", filepath.Join(dir, "link")); err != nil && !errors.Is(err, os.ErrExist) {
		panic(err)
	}
	return dir
}

// kubeGroups are the further groups of the volumes, as getExtraSupplementalGid has them.
func kubeGroups(p *v1.Pod, volumes map[string]volume.Mounted) []int64 {
	var groups []int64
	for _, v := range volumes {
		if id, err := strconv.ParseInt(v.Group, 10, 64); err == nil &&
			!slices.Contains(p.Spec.SecurityContext.SupplementalGroups, id) {
			groups = append(groups, id)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

type imageOf struct {
	internalapi.ImageManagerService
	image *runtimeapi.Image
}

func (s imageOf) ImageStatus(context.Context, *runtimeapi.ImageSpec, bool) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{Image: s.image}, nil
}

func kubeletContainer(in contained) (out configured) {
	at := takeScratch()
	defer at.giveBack()
	helper := kubelet.NewTwinHelper(&kubelet.TwinNode{
		RootDir: at.kubelets, ClusterDomain: in.Settings.ClusterDomain, Node: kubeNode(in.NodeIPs, in.Settings.Allocatable),
		NodeIPs: kubeIPs(in.NodeIPs), Synced: true, Volumes: kubeVolumes(in.Volumes),
		Groups: kubeGroups(in.Pod, in.Volumes), RecursiveReadOnly: in.Settings.RecursiveReadOnly,
		Users: userNamespace(in.Pod),
	})
	p := in.Pod.DeepCopy()
	in.Settings.with(func() {
		config, err := kuberuntime.NewTwinConfig(helper, imageOf{image: in.Image},
			in.Settings.upstream(at.kubelets, at.logs)).Container(context.Background(), p, specOf(&p.Spec, in.Name),
			int(in.Restarts), "sha256:1", in.PodIPs, in.Target, in.ImageVolumes)
		for _, m := range config.GetMounts() {
			if in.OfImages && m.Image == nil {
				m.ImageSubPath = ""
			}
		}
		out = configuredOf(config, err, at.kubelets)
	})
	return out
}

func ourContainer(in contained) configured {
	at := takeScratch()
	defer at.giveBack()
	node := in.Settings.ours(at.ours, at.logs)
	node.HostIPs = func() []string { return in.NodeIPs }
	b := criconfig.Builder{
		Node: node, SubPaths: asIs{}, Objects: &surroundings{},
		Services: objects.NewServices(serviceList{}, func() bool { return true }),
	}
	must(b.Prepare(in.Pod))
	uid, user := images.User(in.Image)
	config, err := b.Container(context.Background(), in.Pod, specOf(&in.Pod.Spec, in.Name), criconfig.ContainerInput{
		RestartCount: in.Restarts, ImageRef: "sha256:1", ImageUID: uid, ImageUser: user,
		PodIPs: status.SortIPs(in.PodIPs, in.NodeIPs[0]), TargetID: in.Target, Volumes: in.Volumes,
		ImageVolumes: in.ImageVolumes, UserNamespace: userNamespace(in.Pod),
	})
	return configuredOf(config, err, at.ours)
}

// configuredOf brings a message to its form: without the folders of this comparison and the random name of the
// termination log, which is removed.
func configuredOf(config *runtimeapi.ContainerConfig, err error, root string) configured {
	if err != nil {
		return configured{Err: strings.ReplaceAll(err.Error(), root, "/root")}
	}
	out := configured{Annotations: config.Annotations}
	config.Annotations = nil
	logs := filepath.Join(root, "pods", string(types.UID("u1")), "containers") + "/"
	for _, m := range config.Mounts {
		switch {
		case strings.HasPrefix(m.HostPath, logs):
			_ = os.Remove(m.HostPath)
			m.HostPath = filepath.Join(filepath.Dir(m.HostPath), "random")
		case strings.HasSuffix(m.HostPath, "/etc-hosts"):
			text, err := os.ReadFile(m.HostPath)
			must(err)
			out.Hosts = string(text)
		}
		m.HostPath = strings.ReplaceAll(m.HostPath, root, "/root")
	}
	if sc := config.Linux.SecurityContext; sc.Seccomp != nil {
		sc.Seccomp.LocalhostRef = strings.ReplaceAll(sc.Seccomp.LocalhostRef, root, "/root")
	}
	out.Text = textOf(config, nil).Text
	if len(config.Linux.SecurityContext.MaskedPaths) == 0 {
		out.Text += "no masked paths\n"
	}
	return out
}
