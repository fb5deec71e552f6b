package podgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Options of a Generator.
type Options struct {
	Seed uint64
	// Node that pods are bound to; empty leaves that to the scheduler.
	Node string
	// Image that has a shell.
	Image string
	// Server is the agnhost image, whose commands answer probes.
	Server string
	// Answers is a port of 127.0.0.1 on the node where something answers HTTP.
	Answers int32
	// Seccomp is the name of a profile in the node agent's folder of seccomp profiles.
	Seccomp string
	// HostDir is a folder of the host that pods may mount.
	HostDir string
	// Without are traits that are left out, by name.
	Without []string
	// Traits is the greatest number of traits of one pod. Default: 5.
	Traits int
}

// Generator deals traits to pods.
type Generator struct {
	opts Options
	rand *rand.Rand
	deck []trait
	used int // host ports
	turn map[string]int
}

// trait is one thing that a pod may have.
type trait struct {
	name  string
	apply func(g *Generator, p *corev1.Pod)
	// alone are classes, divided by spaces, of each of which a pod has one trait at most.
	alone string
	// lasting traits are for pods that run for ever only.
	lasting bool
}

// end is the class of the traits that make a pod come to its end.
const end = "end"

// New returns a Generator.
func New(opts Options) *Generator {
	if opts.Traits == 0 {
		opts.Traits = 5
	}
	return &Generator{opts: opts, rand: rand.New(rand.NewPCG(opts.Seed, 1)), turn: map[string]int{}}
}

// Traits are the names of all traits.
func Traits() []string {
	var names []string
	for _, t := range all() {
		names = append(names, t.name)
	}
	return names
}

// Ending are the names of the traits that make a pod come to its end.
func Ending() []string {
	var names []string
	for _, t := range all() {
		if t.alone == end {
			names = append(names, t.name)
		}
	}
	return names
}

func all() []trait {
	return slices.Concat(containerTraits(), securityTraits(), podTraits(), volumeTraits(), initTraits())
}

// deal takes the next trait that goes with those that the pod has.
func (g *Generator) deal(taken map[string]bool) (trait, bool) {
	if len(g.deck) == 0 {
		g.deck = slices.DeleteFunc(all(), func(t trait) bool { return slices.Contains(g.opts.Without, t.name) })
		g.rand.Shuffle(len(g.deck), func(i, j int) { g.deck[i], g.deck[j] = g.deck[j], g.deck[i] })
	}
	for i, t := range g.deck {
		fits := !taken[t.name] &&
			!slices.ContainsFunc(strings.Fields(t.alone), func(class string) bool { return taken[class] })
		if fits && !(t.lasting && taken[end]) && !(t.alone == end && taken["lasting"]) {
			g.deck = slices.Delete(g.deck, i, i+1)
			return t, true
		}
	}
	return trait{}, false
}

// EndsLabel is "true" on pods that come to their end by themselves.
const EndsLabel = "podgen/ends"

// Ends reports whether the pod comes to its end by itself.
func Ends(p *corev1.Pod) bool { return p.Labels[EndsLabel] == "true" }

// Pod returns the next pod, and the names of its traits.
func (g *Generator) Pod(name string) (*corev1.Pod, []string) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{"app": "podgen", EndsLabel: "false"},
			// What downward API traits read.
			Annotations: map[string]string{"note": fmt.Sprintf("%s of seed %d", name, g.opts.Seed)},
		},
		Spec: corev1.PodSpec{
			NodeName:                      g.opts.Node,
			TerminationGracePeriodSeconds: new(int64(1 + g.rand.IntN(5))),
			Containers:                    []corev1.Container{g.forever("main")},
		},
	}
	taken := map[string]bool{}
	var names []string
	for range 1 + g.rand.IntN(g.opts.Traits) {
		t, ok := g.deal(taken)
		if !ok {
			break
		}
		t.apply(g, p)
		taken[t.name] = true
		for _, class := range strings.Fields(t.alone) {
			taken[class] = true
		}
		taken["lasting"] = taken["lasting"] || t.lasting
		names = append(names, t.name)
	}
	return p, names
}

// forever is a container that runs until it is asked to end, and then ends at once.
func (g *Generator) forever(name string) corev1.Container {
	return g.script(name, "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done")
}

func (g *Generator) script(name, script string) corev1.Container {
	return corev1.Container{
		Name: name, Image: g.opts.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"sh", "-c", script},
	}
}

// next picks the values of a trait in turn, so that few pods have all of them.
func next[T any](g *Generator, of string, values ...T) T {
	i, begun := g.turn[of]
	if !begun {
		i = g.rand.IntN(len(values))
	}
	g.turn[of] = i + 1
	return values[i%len(values)]
}

// one picks one of several values.
func one[T any](g *Generator, values ...T) T { return values[g.rand.IntN(len(values))] }

func main(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }

func pct(p *corev1.Pod) *corev1.PodSecurityContext {
	if p.Spec.SecurityContext == nil {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	return p.Spec.SecurityContext
}

func ctx(c *corev1.Container) *corev1.SecurityContext {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	return c.SecurityContext
}

// Names of the objects that pods name.
const (
	settings     = "podgen-settings"
	secrets      = "podgen-secrets"
	account      = "podgen-account"
	pullSecret   = "podgen-pull"
	priority     = "podgen-high"
	runtimeClass = "podgen-class"
)

// Handler is the runtime handler of the class that pods name.
const Handler = "runc"

// Objects are what pods name, in a namespace or, where the type has none, in the cluster.
func Objects(namespace string) []runtime.Object {
	meta := metav1.ObjectMeta{Name: settings, Namespace: namespace}
	named := func(name string) metav1.ObjectMeta {
		m := meta
		m.Name = name
		return m
	}
	return []runtime.Object{
		&corev1.ConfigMap{
			ObjectMeta: meta,
			Data:       map[string]string{"colour": "green", "size": "12", "text.conf": "a = 1\nb = 2\n"},
			BinaryData: map[string][]byte{"bytes": {0, 1, 2, 255}},
		},
		&corev1.Secret{
			ObjectMeta: named(secrets),
			Data:       map[string][]byte{"password": []byte("s3cret"), "user": []byte("jane")},
		},
		&corev1.Secret{ObjectMeta: named(pullSecret), Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{
			corev1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example":{"username":"u","password":"p"}}}`),
		}},
		&corev1.ServiceAccount{ObjectMeta: named(account)},
		&corev1.Service{ObjectMeta: named("podgen-web"), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "none"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
		}},
	}
}

// ClusterObjects are what pods of every namespace name.
func ClusterObjects() (*nodev1.RuntimeClass, map[string]int32) {
	return &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: runtimeClass}, Handler: Handler,
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("7m"), corev1.ResourceMemory: resource.MustParse("3Mi"),
		}},
	}, map[string]int32{priority: 1000}
}
