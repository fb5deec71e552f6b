package status

import (
	"log/slog"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/pod"
	"github.com/microlet/microlet/services/podsync/internal/status/internal/publisher"
)

// diary is written by all that are called, in the order of the calls.
type diary struct {
	lines []string
	// gateway is asked, whenever the bus is called, whether it knows the container "id".
	gateway gateway
}

// gateway is the one of CRI.
type gateway struct {
	pods     map[types.UID]bool
	ids      map[string]types.UID
	complete bool
}

func (g *gateway) SetPod(p *v1.Pod) { g.pods[p.UID] = true }

func (g *gateway) SetState(uid types.UID, s *pod.State) {
	for i := range s.Containers {
		if g.pods[uid] {
			g.ids[s.Containers[i].ID] = uid
		}
	}
}

func (g *gateway) SetComplete() { g.complete = true }

func (g *gateway) Forget(uid types.UID) {
	maps.DeleteFunc(g.ids, func(_ string, of types.UID) bool { return of == uid })
}

func (g *gateway) knows(id string) bool {
	_, known := g.ids[id]
	return known
}

func (d *diary) write(line string) { d.lines = append(d.lines, line) }

// bucket is one of the bus.
type bucket struct {
	*diary
	name string
}

func (b bucket) Put(key string, _ proto.Message) {
	if b.gateway.knows("id") {
		key += " of a container that the gateway knows"
	}
	b.write(b.name + " puts " + key)
}
func (b bucket) PutTraced(key string, m proto.Message, _ string) { b.Put(key, m) }
func (b bucket) Delete(key string)                               { b.write(b.name + " deletes " + key) }
func (b bucket) Complete()                                       { b.write(b.name + " is complete") }

// prober is the other service.
type prober struct{ *diary }

func (p prober) Set(api *v1.Pod)      { p.write("prober sets " + string(api.UID)) }
func (p prober) Forget(uid types.UID) { p.write("prober forgets " + string(uid)) }
func (p prober) Complete()            { p.write("prober is complete") }

func newDiary() (*diary, *publisher.Publisher) {
	d := &diary{gateway: gateway{pods: map[types.UID]bool{}, ids: map[string]types.UID{}}}
	return d, publisher.New(bucket{d, "pods"}, bucket{d, "statuses"}, bucket{d, "node"}, nil,
		slog.New(slog.DiscardHandler))
}

func TestTheGatewayKnowsFirst(t *testing.T) {
	d, bus := newDiary()
	o := &PodReporter{gateway: &d.gateway, bus: bus, prober: prober{d}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	o.Pod(p, p, podsyncv1.PodSource_POD_SOURCE_API, false)
	o.synced()
	o.Status("u", &pod.State{Containers: []pod.Container{{ID: "id", Name: "c"}}}, &v1.PodStatus{})
	if d.gateway.complete {
		t.Error("the gateway takes what it does not know for no pod's, before all states are known")
	}
	o.reported()
	if !d.gateway.complete {
		t.Error("the gateway waits for states that are known")
	}
	o.Forget("u")
	if d.gateway.knows("id") {
		t.Error("the gateway knows a container of a pod that is gone")
	}
	want := []string{
		"pods puts u", "prober sets u", "pods is complete", "prober is complete",
		"statuses puts u of a container that the gateway knows", "statuses is complete",
		"pods deletes u", "statuses deletes u", "prober forgets u",
	}
	if !slices.Equal(d.lines, want) {
		t.Errorf("reported\n%q, want\n%q", d.lines, want)
	}
}

func TestTheFirstAnswerOfTheRuntimeCompletesTheNode(t *testing.T) {
	d, bus := newDiary()
	k := NodeReporter{bus: bus, machine: Machine{SystemUUID: "m"}}
	k.Learn(&podsyncv1.Runtime{Error: "away"})
	k.Learn(&podsyncv1.Runtime{Name: "containerd"})
	want := []string{"node puts runtime", "node puts capacity", "node is complete", "node puts runtime"}
	if !slices.Equal(d.lines, want) {
		t.Errorf("reported %q, want %q", d.lines, want)
	}
}
