package publication

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	resourcesv1 "github.com/microlet/microlet/proto/microlet/resources/v1"
	"github.com/microlet/microlet/services/resources/internal/devices"
)

// bucket records what is written.
type bucket struct {
	keys     map[string]bool
	complete bool
}

func (b *bucket) Put(key string, _ proto.Message) { b.keys[key] = true }
func (b *bucket) Delete(key string)               { delete(b.keys, key) }
func (b *bucket) Complete()                       { b.complete = true }

func (b *bucket) String() string {
	text := strings.Join(slices.Sorted(maps.Keys(b.keys)), " ")
	if b.complete {
		text += " complete"
	}
	return text
}

// manager has grants.
type manager struct {
	pods map[types.UID]*resourcesv1.PodResources
	node *resourcesv1.NodeResources
}

func (m *manager) Pod(uid types.UID) *resourcesv1.PodResources   { return m.pods[uid] }
func (m *manager) Pods() map[types.UID]*resourcesv1.PodResources { return m.pods }
func (m *manager) Node() *resourcesv1.NodeResources              { return m.node }

// A start puts nothing of what an earlier process knew better, and what is granted meanwhile.
func TestWhatIsPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		grants, node := &bucket{keys: map[string]bool{}}, &bucket{keys: map[string]bool{}}
		m := &manager{pods: map[types.UID]*resourcesv1.PodResources{"old": {}}}
		p := New(grants, node)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		turns := 0
		go func() { done <- p.Run(ctx, m, func() { turns++ }) }()
		expect := func(wantGrants, wantNode string) {
			t.Helper()
			synctest.Wait()
			if grants.String() != wantGrants || node.String() != wantNode {
				t.Errorf("grants are %q, want %q; node is %q, want %q", grants, wantGrants, node, wantNode)
			}
		}
		expect("", "")
		m.pods["new"] = &resourcesv1.PodResources{}
		p.Note(devices.Change{Pods: []types.UID{"new"}})
		expect("new", "")
		m.node = &resourcesv1.NodeResources{}
		p.Note(devices.Change{Node: true})
		expect("new old complete", "resources complete")
		delete(m.pods, "old")
		p.Note(devices.Change{Pods: []types.UID{"old"}})
		expect("new complete", "resources complete")
		cancel()
		if err := <-done; err != nil || turns < 4 {
			t.Errorf("%d turns, %v", turns, err)
		}
	})
}
