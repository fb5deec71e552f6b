package twins

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	kuberesource "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
	"github.com/microlet/microlet/services/podsync/internal/criconfig"
	"github.com/microlet/microlet/services/podsync/internal/pod/status"
	"github.com/microlet/microlet/services/podsync/internal/volumes"
)

// surroundings are a container and what its variables are made from.
type surroundings struct {
	Pod *v1.Pod
	// Of is the index of the container, among the init containers if Init.
	Of   int
	Init bool
	// PodIPs are as the runtime has them, NodeIPs the node's.
	PodIPs, NodeIPs []string
	Services        []*v1.Service
	Unsynced        bool
	Allocatable     v1.ResourceList
	// Large are the lengths of the values of a ConfigMap beside the small one.
	Large []int
}

// environment is a container's variables, its words, and the path that its mount names.
type environment struct {
	Err                     string
	Variables, Words, Paths []string
}

var _ = register(Pair[surroundings, environment]{
	Name:     "environment",
	Generate: drawSurroundings,
	Upstream: kubeletEnvironment,
	Ours:     ourEnvironment,
	Branches: environmentBranches,
	Wanted: []string{"is an error", "is too long", "no Services yet", "more than one variable", "a reference is replaced",
		"a reference stays", "variables of a Service", "no variables of Services", "a key of a Secret", "a path",
		"a path without a value", "a field", "a limit of a container", "an address of the node", "two addresses"},
	Differences: []Difference[surroundings, environment]{
		{Name: "knows the limit of an init container", As: limitInitContainers},
		{Name: "refuses what execve does not take", Adjust: refuseTooLong},
	},
	Break: func(_ surroundings, out *environment) {
		for i, word := range out.Words {
			out.Words[i] = strings.Replace(word, "$(", "$$(", 1)
		}
	},
})

const tooLong = "longer than execve takes"

// refuseTooLong says what ours does with 128 KiB in one variable or word, and with 2 MiB in all of them.
func refuseTooLong(_ surroundings, out *environment) bool {
	if out.Err != "" {
		return false
	}
	all, longest := 0, 0
	for _, text := range slices.Concat(out.Variables, out.Words) {
		longest = max(longest, len(text))
		all += len(text) + 1 + 8 // the zero at its end, and the pointer to it
	}
	if longest < 128<<10 && all <= 2<<20 {
		return false
	}
	*out = environment{Err: tooLong}
	return true
}

// limitInitContainers gives the init containers that variables name the limits that the kubelet gives containers.
func limitInitContainers(in surroundings) (surroundings, bool) {
	names := false
	for _, v := range in.container().Env {
		if from := v.ValueFrom; from != nil && from.ResourceFieldRef != nil {
			names = names || podutil.IsInit(&in.Pod.Spec, from.ResourceFieldRef.ContainerName)
		}
	}
	if !names {
		return in, false
	}
	most := in.Allocatable.DeepCopy()
	if r := in.Pod.Spec.Resources; r != nil {
		for name, limit := range r.Limits {
			if _, known := most[name]; known && !limit.IsZero() {
				most[name] = limit
			}
		}
	}
	in.Pod = in.Pod.DeepCopy()
	for i := range in.Pod.Spec.InitContainers {
		kuberesource.MergeContainerResourceLimits(&in.Pod.Spec.InitContainers[i], most)
	}
	return in, true
}

func environmentBranches(in surroundings, out environment) []string {
	var did []string
	add := func(what string, is bool) {
		if is {
			did = append(did, what)
		}
	}
	has := func(list []string, part string) bool {
		return slices.ContainsFunc(list, func(text string) bool { return strings.Contains(text, part) })
	}
	c := in.container()
	add("is an error", out.Err != "")
	if out.Err != "" {
		add("no Services yet", strings.Contains(out.Err, "services have not yet been read"))
		add("a path without a value", strings.Contains(out.Err, "missing value for"))
		return did
	}
	add("is too long", slices.ContainsFunc(out.Variables, func(text string) bool { return len(text) >= 128<<10 }))
	add("more than one variable", len(out.Variables) > 1)
	add("a reference is replaced", has(append(c.Command, c.Args...), "$(") && !has(out.Words, "$("))
	add("a reference stays", has(out.Words, "$("))
	add("variables of a Service", has(out.Variables, "DB_SERVICE_PORT"))
	add("no variables of Services", !has(out.Variables, "_SERVICE_HOST"))
	add("a path", len(out.Paths) > 0 && out.Paths[0] != "/volume")
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		add("a key of a Secret", from.SecretKeyRef != nil)
		add("a field", from.FieldRef != nil)
		add("an address of the node", from.FieldRef != nil && strings.HasPrefix(from.FieldRef.FieldPath, "status.hostIP"))
		add("two addresses", len(in.PodIPs) > 1 && from.FieldRef != nil && from.FieldRef.FieldPath == "status.podIPs")
		add("a limit of a container", from.ResourceFieldRef != nil)
	}
	return did
}

func (in *surroundings) container() *v1.Container {
	if in.Init {
		return &in.Pod.Spec.InitContainers[in.Of]
	}
	return &in.Pod.Spec.Containers[in.Of]
}

// variableNames are few, so that they refer to each other.
var variableNames = []string{"A", "B", "C", "DB_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "P_a", "large.0"}

func drawSurroundings(s *Source) surroundings {
	in := surroundings{
		PodIPs: OneOf(s, nil, []string{"10.0.0.2"}, []string{"fd00::2", "10.0.0.2"}, []string{"10.0.0.2", "fd00::2"}),
		NodeIPs: OneOf(s, []string{"192.168.0.1"}, []string{"192.168.0.1", "fd01::1"}, []string{"fd01::1", "192.168.0.1"},
			[]string{"fd01::1"}),
		Unsynced: s.Percent(3),
	}
	in.Allocatable = drawResources(s, []string{"2", "4", "3500m"}, []string{"8Gi", "7777777k"}, 90)
	if s.Percent(50) {
		in.Allocatable[v1.ResourceEphemeralStorage] = resource.MustParse("20Gi")
	}
	for range OneOf(s, 0, 1, 2, 4) {
		in.Services = append(in.Services, drawService(s))
	}
	in.Services = onePerName(in.Services)
	if s.Percent(1) {
		for range 1 + s.Intn(4) {
			in.Large = append(in.Large, OneOf(s, 65<<10, 131062, 131063, 131064, 131071, 131072, 100<<10))
		}
	}
	in.Pod = drawNamedPod(s)
	in.Pod.Spec.EnableServiceLinks = new(s.Percent(60))
	if s.Percent(20) {
		in.Pod.Spec.Resources = &v1.ResourceRequirements{Limits: drawResources(s, []string{"2"}, []string{"1Gi", "0"}, 60)}
	}
	for i := range OneOf(s, 1, 1, 2) {
		in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, drawAmounts(s, fmt.Sprintf("c%d", i)))
	}
	for i := range OneOf(s, 0, 0, 1) {
		in.Pod.Spec.InitContainers = append(in.Pod.Spec.InitContainers, drawAmounts(s, fmt.Sprintf("i%d", i)))
	}
	in.Init = len(in.Pod.Spec.InitContainers) > 0 && s.Percent(50)
	if !in.Init {
		in.Of = s.Intn(len(in.Pod.Spec.Containers))
	}
	drawVariables(s, &in, in.container())
	return in
}

// drawNamedPod draws the metadata.
func drawNamedPod(s *Source) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: OneOf(s, "web", "a.b"), Namespace: OneOf(s, "shop", "default"), UID: "u1"},
		Spec:       v1.PodSpec{NodeName: "node", ServiceAccountName: OneOf(s, "default", "robot")},
	}
	for _, of := range []*map[string]string{&p.Labels, &p.Annotations} {
		for range OneOf(s, 0, 1, 2, 3) {
			if *of == nil {
				*of = map[string]string{}
			}
			(*of)[OneOf(s, "app", "app.x/y", "app-b", "app/b")] = OneOf(s, "", "one", "a \"b\"\n\\ é", "$(A)")
		}
	}
	if s.Percent(10) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations["kubernetes.io/config.source"] = "file"
	}
	return p
}

func drawResources(s *Source, cpu, memory []string, percent int) v1.ResourceList {
	list := v1.ResourceList{}
	if s.Percent(percent) {
		list[v1.ResourceCPU] = resource.MustParse(OneOf(s, cpu...))
	}
	if s.Percent(percent) {
		list[v1.ResourceMemory] = resource.MustParse(OneOf(s, memory...))
	}
	return list
}

func drawAmounts(s *Source, name string) v1.Container {
	c := v1.Container{Name: name, Image: "image:1"}
	c.Resources.Limits = drawResources(s, []string{"1", "250m", "1001m", "0"}, []string{"64Mi", "100M", "1", "0"}, 50)
	c.Resources.Requests = drawResources(s, []string{"1", "1m", "0"}, []string{"32Mi", "12345"}, 50)
	if s.Percent(20) {
		c.Resources.Limits["hugepages-2Mi"] = resource.MustParse("4Mi")
		c.Resources.Requests["hugepages-2Mi"] = resource.MustParse("4Mi")
	}
	if s.Percent(20) {
		c.Resources.Limits[v1.ResourceEphemeralStorage] = resource.MustParse(OneOf(s, "1Gi", "1500M", "0"))
	}
	return c
}

func drawService(s *Source) *v1.Service {
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: OneOf(s, "kubernetes", "db", "my-db", "web"), Namespace: OneOf(s, "default", "shop", "other"),
		},
		Spec: v1.ServiceSpec{ClusterIP: OneOf(s, "10.96.0.1", "10.96.0.2", "fd02::1", "None", "")},
	}
	for i := range OneOf(s, 1, 1, 2, 3) {
		port := v1.ServicePort{
			Port:     OneOf(s, int32(80), 443, 53) + int32(i),
			Protocol: OneOf(s, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP, ""),
		}
		if i > 0 || s.Percent(50) {
			port.Name = fmt.Sprintf(OneOf(s, "p%d", "http-%d", "80-%d"), i)
		}
		service.Spec.Ports = append(service.Spec.Ports, port)
	}
	return service
}

func onePerName(services []*v1.Service) []*v1.Service {
	seen := map[string]bool{}
	return slices.DeleteFunc(services, func(s *v1.Service) bool {
		key := s.Namespace + "/" + s.Name
		again := seen[key]
		seen[key] = true
		return again
	})
}

func drawText(s *Source, large int) string {
	var b strings.Builder
	for range OneOf(s, 0, 1, 1, 2, 3, 5) {
		b.WriteString(OneOf(s, "x", "$", "$$", "(", ")", "$(", "$(A)", "$(B)", "$(NONE)", "$(P_a)", "$(P_b)", "$()", "$(A",
			"$(A B)", "$$(A)", "$$$(C)", "é", "$é", "=", "/", "$(DB_SERVICE_HOST)", "$(DB_SERVICE_PORT)",
			"$(KUBERNETES_SERVICE_PORT)", "$($(A))"))
	}
	if large > 0 && s.Percent(30) {
		fmt.Fprintf(&b, "$(large.%d)", s.Intn(large))
	}
	return b.String()
}

func drawVariables(s *Source, in *surroundings, c *v1.Container) {
	if len(in.Large) > 0 {
		for i := range OneOf(s, 1, 2, 4, 8) {
			from := v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{}}
			from.ConfigMapRef.Name = "large"
			if i > 0 {
				from.Prefix = fmt.Sprintf("L%d_", i)
			}
			c.EnvFrom = append(c.EnvFrom, from)
		}
	}
	for range OneOf(s, 0, 0, 1, 2) {
		name, optional := OneOf(s, "small", "small", "none"), drawOptional(s, in)
		from := v1.EnvFromSource{Prefix: OneOf(s, "", "P_", "P2_")}
		if s.Percent(50) {
			from.SecretRef = &v1.SecretEnvSource{Optional: optional}
			from.SecretRef.Name = name
		} else {
			from.ConfigMapRef = &v1.ConfigMapEnvSource{Optional: optional}
			from.ConfigMapRef.Name = name
		}
		c.EnvFrom = append(c.EnvFrom, from)
	}
	for i := range OneOf(s, 0, 1, 2, 4, 6) {
		variable := v1.EnvVar{Name: OneOf(s, variableNames[:6]...)}
		if len(in.Large) > 0 {
			variable.Name = fmt.Sprint("V", i) // a value that is replaced counts in one of the two only
		}
		if s.Percent(50) {
			variable.Value = drawText(s, len(in.Large))
		} else if s.Percent(90) {
			variable.ValueFrom = drawValueFrom(s, in)
		}
		c.Env = append(c.Env, variable)
	}
	for _, words := range []*[]string{&c.Command, &c.Args} {
		for range OneOf(s, 0, 1, 2) {
			*words = append(*words, drawText(s, len(in.Large)))
		}
	}
	if s.Percent(20) && len(in.Large) == 0 {
		m := v1.VolumeMount{Name: "data", MountPath: "/data"}
		m.SubPathExpr = OneOf(s, "x", "$(A)", "a$(B)/$(C)", "$(A)$(NONE)", "$$(A)", "$(DB_SERVICE_HOST)", "$(A")
		c.VolumeMounts = append(c.VolumeMounts, m)
	}
}

// drawOptional is true with large values: what is refused first, too long or missing, is not compared.
func drawOptional(s *Source, in *surroundings) *bool {
	optional := OneOf(s, new(true), nil, new(false))
	if len(in.Large) > 0 {
		return new(true)
	}
	return optional
}

func drawValueFrom(s *Source, in *surroundings) *v1.EnvVarSource {
	name, optional := OneOf(s, "small", "small", "small", "none"), drawOptional(s, in)
	key := OneOf(s, "a", "b", "missing")
	from := &v1.EnvVarSource{}
	switch OneOf(s, "field", "resource", "config map", "secret") {
	case "field":
		from.FieldRef = &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: OneOf(s, "metadata.name", "metadata.namespace",
			"metadata.uid", "metadata.labels", "metadata.annotations", "metadata.labels['app']", "metadata.labels['app.x/y']",
			"metadata.annotations['app/b']", "metadata.annotations['App']", "spec.nodeName", "spec.host",
			"spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")}
	case "resource":
		ref := &v1.ResourceFieldSelector{Resource: OneOf(s, "limits.cpu", "limits.memory", "limits.ephemeral-storage",
			"requests.cpu", "requests.memory", "requests.ephemeral-storage", "limits.hugepages-2Mi",
			"requests.hugepages-2Mi")}
		if divisor := OneOf(s, "", "1", "1k", "1Mi"); divisor != "" {
			ref.Divisor = resource.MustParse(divisor)
		}
		if strings.HasSuffix(ref.Resource, "cpu") {
			ref.Divisor = resource.MustParse(OneOf(s, "0", "1", "1m"))
		}
		if s.Percent(30) {
			ref.ContainerName = OneOf(s, "c0", "c0", "i0", "none")
			if len(in.Large) > 0 {
				ref.ContainerName = "c0"
			}
		}
		from.ResourceFieldRef = ref
	case "config map":
		from.ConfigMapKeyRef = &v1.ConfigMapKeySelector{Key: key, Optional: optional}
		from.ConfigMapKeyRef.Name = name
	case "secret":
		from.SecretKeyRef = &v1.SecretKeySelector{Key: key, Optional: optional}
		from.SecretKeyRef.Name = name
	}
	return from
}

// Secret and ConfigMap are the objects that there are.
func (in *surroundings) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if name != "small" {
		return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
	}
	return &v1.Secret{Data: map[string][]byte{"a": []byte("secret a"), "b": {}}}, nil
}

func (in *surroundings) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	switch name {
	case "small":
		return &v1.ConfigMap{Data: map[string]string{"a": "$(A) of the map", "b": "b"}}, nil
	case "large":
		data := map[string]string{}
		for i, length := range in.Large {
			data[fmt.Sprint("large.", i)] = strings.Repeat("x", length)
		}
		return &v1.ConfigMap{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmaps"), name)
}

// kubeNode is the Node object, with these addresses.
func kubeNode(ips []string, allocatable v1.ResourceList) *v1.Node {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node.Status.Allocatable = allocatable
	for _, ip := range ips {
		node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return node
}

func kubeIPs(texts []string) []net.IP {
	var ips []net.IP
	for _, text := range texts {
		ips = append(ips, net.ParseIP(text))
	}
	return ips
}

// mounting is the container with a hosts file of its own, so that none is written.
func (in *surroundings) mounting() *v1.Container {
	c := in.container().DeepCopy()
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "hosts", MountPath: "/etc/hosts"})
	return c
}

func kubeletEnvironment(in surroundings) environment {
	ctx := context.Background()
	helper := kubelet.NewTwinHelper(&kubelet.TwinNode{
		Node: kubeNode(in.NodeIPs, in.Allocatable), NodeIPs: kubeIPs(in.NodeIPs),
		Services: in.Services, Synced: !in.Unsynced,
		Secret:    func(ns, name string) (*v1.Secret, error) { return in.Secret(ctx, ns, name) },
		ConfigMap: func(ns, name string) (*v1.ConfigMap, error) { return in.ConfigMap(ctx, ns, name) },
		Volumes:   kubeVolumes(map[string]volumes.Mounted{"data": {HostPath: "/volume"}, "hosts": {HostPath: "/hosts"}}),
	})
	c := in.mounting()
	options, _, err := helper.GenerateRunContainerOptions(ctx, in.Pod, c, slices.Concat(in.PodIPs, []string{""})[0],
		in.PodIPs, nil)
	if err != nil {
		return environment{Err: err.Error()}
	}
	out := environment{}
	for _, v := range options.Envs {
		out.Variables = append(out.Variables, v.Name+"="+v.Value)
	}
	slices.Sort(out.Variables)
	for _, m := range options.Mounts[:len(options.Mounts)-1] {
		out.Paths = append(out.Paths, m.HostPath)
	}
	command, args := kubecontainer.ExpandContainerCommandAndArgs(c, options.Envs)
	out.Words = slices.Concat(command, args)
	return out
}

// asIs binds a path where it is.
type asIs struct{}

func (asIs) SubPath(_ context.Context, s volumes.SubPath) (string, error) {
	if err := volumes.CheckSubPath(s.Path); err != nil {
		return "", err
	}
	return filepath.Join(s.Root, s.Path), nil
}

type serviceList struct {
	corelisters.ServiceLister
	all []*v1.Service
}

func (l serviceList) List(labels.Selector) ([]*v1.Service, error) { return l.all, nil }

func ourEnvironment(in surroundings) environment {
	at := takeScratch()
	defer at.giveBack()
	b := criconfig.Builder{
		Node: criconfig.Node{
			RootDir: at.ours, PodLogsDir: at.logs,
			Allocatable: func() v1.ResourceList { return in.Allocatable },
			HostIPs:     func() []string { return in.NodeIPs },
		},
		Objects: &in, SubPaths: asIs{},
		Services: objects.NewServices(serviceList{all: in.Services}, func() bool { return !in.Unsynced }),
	}
	if err := b.Prepare(in.Pod); err != nil {
		panic(err)
	}
	config, err := b.Container(context.Background(), in.Pod, in.mounting(), criconfig.ContainerInput{
		PodIPs:  status.SortIPs(in.PodIPs, in.NodeIPs[0]),
		Volumes: map[string]volumes.Mounted{"data": {HostPath: "/volume"}, "hosts": {HostPath: "/hosts"}},
	})
	if err != nil {
		if strings.Contains(err.Error(), "are possible") {
			return environment{Err: tooLong}
		}
		return environment{Err: err.Error()}
	}
	out := environment{Words: slices.Concat(config.Command, config.Args)}
	for _, v := range config.Envs {
		out.Variables = append(out.Variables, v.Key+"="+string(v.Value))
	}
	slices.Sort(out.Variables)
	for _, m := range config.Mounts[:len(config.Mounts)-1] {
		out.Paths = append(out.Paths, m.HostPath)
	}
	return out
}
