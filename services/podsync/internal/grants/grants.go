package grants

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/internal/service"
)

// Workers look after the pods; see pods.Workers.
type Workers interface {
	Wake(uid types.UID, reason string)
	Known(uid types.UID) bool
	// Synced is closed once every source of pods has been heard.
	Synced() <-chan struct{}
}

// nodeView and podView are what is known of the bus; see bus.View.
type nodeView interface {
	Get(key string) (*resourcesv1.NodeResources, bool)
}

type podView interface {
	Get(key string) (*resourcesv1.PodResources, bool)
	All() map[string]*resourcesv1.PodResources
	Synced() bool
}

// Grants are what pods were granted. Its methods may be called from any goroutine.
type Grants struct {
	client  resourcesv1.ResourcesServiceClient
	node    nodeView
	pods    podView
	workers Workers
	metrics metrics
	log     *slog.Logger
	plugins *plugins

	mu sync.Mutex
	// answers are those of resources to this podsync. Containers are configured with nothing else: the bus, which could
	// forge a grant, may not choose mounts and devices of the host.
	answers map[types.UID]*resourcesv1.PodResources
	// waiting are the pods that wait for a plugin.
	waiting map[types.UID]bool
}

// New returns what asks resources, which it connects to with the first question.
func New(ctx context.Context, s *service.Service, workers Workers) (*Grants, error) {
	conn, err := s.Dial(ctx, role.Resources)
	if err != nil {
		return nil, err
	}
	g := newGrants(conn, workers, s.Log)
	g.metrics = newMetrics(s.Metrics)
	g.node = bus.Watch[resourcesv1.NodeResources](s.Bus, subject.Node, subject.NodeResources, g.nodeChanged)
	g.pods = bus.Watch[resourcesv1.PodResources](s.Bus, subject.Resources, "*", g.podChanged)
	return g, nil
}

func newGrants(conn *grpc.ClientConn, workers Workers, log *slog.Logger) *Grants {
	client := resourcesv1.NewResourcesServiceClient(conn)
	return &Grants{
		client: client, workers: workers, log: log, plugins: newPlugins(conn, client, log),
		answers: map[types.UID]*resourcesv1.PodResources{}, waiting: map[types.UID]bool{},
	}
}

// Run keeps the plugins that were registered known to resources, until ctx ends. Then it closes the connection.
func (g *Grants) Run(ctx context.Context) error { return g.plugins.run(ctx) }

// Extended returns how much of its extended resources the node has for pods. known is false while resources has said
// nothing: it may not have been needed yet.
func (g *Grants) Extended() (allocatable v1.ResourceList, known bool) {
	m, known := g.node.Get(subject.NodeResources)
	allocatable = v1.ResourceList{}
	for _, r := range m.GetResources() {
		if name := v1.ResourceName(r.GetName()); podutil.IsExtended(name) {
			allocatable[name] = *resource.NewQuantity(max(r.GetAllocatable(), 0), resource.DecimalSI)
		}
	}
	return allocatable, known
}

// Needs reports whether resources has to be asked for a pod: a container has an extended resource in its limits which
// is known to be one of resources, or of which that is not known.
func (g *Grants) Needs(p *v1.Pod) bool { return len(g.asked(p)) > 0 }

// asked are those extended resources of a pod, ordered by name.
func (g *Grants) asked(p *v1.Pod) []v1.ResourceName {
	var names []v1.ResourceName
	for c := range podutil.Containers(&p.Spec) {
		names = append(names, g.ofContainer(c)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (g *Grants) ofContainer(c *v1.Container) []v1.ResourceName {
	names := podutil.Extended(c)
	if len(names) == 0 {
		return nil
	}
	extended, known := g.Extended()
	return slices.DeleteFunc(names, func(name v1.ResourceName) bool {
		_, offered := extended[name]
		return known && !offered
	})
}

// answer returns what resources has said that a pod was granted.
func (g *Grants) answer(uid types.UID) (granted *resourcesv1.PodResources, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	granted, known = g.answers[uid]
	return granted, known
}

// Forget drops what is known of a pod that is gone, or that is to be admitted again.
func (g *Grants) Forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.answers, uid)
	delete(g.waiting, uid)
}

// nodeChanged wakes the pods that wait for a plugin.
func (g *Grants) nodeChanged(string) {
	g.mu.Lock()
	var uids []types.UID
	for uid := range g.waiting {
		uids = append(uids, uid)
	}
	g.mu.Unlock()
	for _, uid := range uids {
		g.workers.Wake(uid, wakeReason)
	}
}

// podChanged has a pod's status show the health of its devices.
func (g *Grants) podChanged(key string) {
	if uid := types.UID(key); g.workers.Known(uid) {
		g.workers.Wake(uid, wakeReason)
	}
}

// wakeReason is the value of the label of a wake.
const wakeReason = "resources"
