package registration

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/nodeinfo"
)

// calls counts who was called.
type calls struct{ assumed, reported, registered int }

func (t *calls) Assume()           { t.assumed++ }
func (t *calls) Reported(*v1.Node) { t.reported++ }

func nodeOf(uid types.UID, boot string, ready v1.ConditionStatus) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: uid},
		Status: v1.NodeStatus{
			NodeInfo:   v1.NodeSystemInfo{BootID: boot},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}},
		},
	}
}

func TestANodeThatWasReadyInThisBootStaysReady(t *testing.T) {
	for name, c := range map[string]struct {
		boot  string
		fails error
		node  *v1.Node
		want  int
	}{
		"ready in this boot":     {"b", nil, nodeOf("u", "b", v1.ConditionTrue), 1},
		"not ready in this boot": {"b", nil, nodeOf("u", "b", v1.ConditionFalse), 0},
		"ready in another boot":  {"b", nil, nodeOf("u", "a", v1.ConditionTrue), 0},
		"no boot is known":       {"", errors.New("no such file"), nodeOf("u", "", v1.ConditionTrue), 0},
	} {
		var got calls
		New(Options{Ready: &got, Machine: func() (nodeinfo.Machine, error) {
			return nodeinfo.Machine{BootID: c.boot},
				c.fails
		}}).Found(c.node)
		if got.assumed != c.want {
			t.Errorf("%s: assumed %d times, want %d", name, got.assumed, c.want)
		}
	}
}

// What a deleted Node owns is garbage. Until another Node is registered, the Lease has no owner.
func TestADeletedNodeOwnsNothing(t *testing.T) {
	var got calls
	watched := nodeOf("first", "b", v1.ConditionTrue)
	r := New(Options{
		Bus: &got, Events: record.NewFakeRecorder(10), Watched: func() *v1.Node { return watched }, Registered: func() {},
	})
	is := func(when string, want types.UID) {
		t.Helper()
		if uid := r.NodeUID(); uid != want {
			t.Errorf("%s the Node is %q, want %q", when, uid, want)
		}
	}
	r.Accepted(watched)
	is("while it is watched", "first")
	watched = nil
	is("deleted", "")
	r.Accepted(nodeOf("second", "b", v1.ConditionTrue))
	is("registered again and not watched yet", "second")
	watched = nodeOf("second", "b", v1.ConditionTrue)
	is("watched again", "second")
	watched = nil
	is("deleted again", "")
}

func TestTheFirstAcceptanceStartsTheKubelet(t *testing.T) {
	var got calls
	var watched *v1.Node
	events := record.NewFakeRecorder(10)
	r := New(Options{
		Bus: &got, Events: events, Watched: func() *v1.Node { return watched }, Registered: func() { got.registered++ },
	})
	if uid := r.NodeUID(); uid != "" {
		t.Errorf("an unseen node has UID %q", uid)
	}
	r.Accepted(nodeOf("first", "b", v1.ConditionTrue))
	r.Accepted(nodeOf("second", "b", v1.ConditionTrue))
	if got.reported != 2 || got.registered != 1 || len(events.Events) != 1 {
		t.Errorf("%+v and %d events", got, len(events.Events))
	}
	if e := <-events.Events; e != "Normal Starting Starting kubelet." {
		t.Errorf("event %q", e)
	}
	if uid := r.NodeUID(); uid != "second" {
		t.Errorf("UID %q is not that of the Node that was accepted last", uid)
	}
	watched = nodeOf("third", "b", v1.ConditionTrue)
	if uid := r.NodeUID(); uid != "third" {
		t.Errorf("UID %q is not that of the watch", uid)
	}
}
