package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

const file, web = podsyncv1.PodSource_POD_SOURCE_FILE, podsyncv1.PodSource_POD_SOURCE_HTTP

func staticPod(uid types.UID) *v1.Pod {
	p := testPod(uid)
	p.Name, p.Generation = "static", 0
	return p
}

// TestAnEditedManifestWaitsForTheOldPod: both would need the same ports.
func TestAnEditedManifestWaitsForTheOldPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		defer n.run()()
		n.dispatcher.SetPod(staticPod("1"), file)
		n.wait(time.Second)
		if !n.running("1") {
			t.Fatal("the first does not run")
		}
		n.dispatcher.SetPod(staticPod("2"), file) // before its predecessor is taken back: another file of the same name
		n.dispatcher.SetPod(staticPod("3"), web)
		n.wait(time.Minute)
		if n.dispatcher.Known("2") || n.dispatcher.Known("3") {
			t.Fatal("a second pod of the name began")
		}
		n.dispatcher.RemovePod("2", file)
		n.dispatcher.RemovePod("1", file)
		n.wait(time.Minute)
		if n.dispatcher.Known("1") || n.dispatcher.Known("2") || !n.running("3") {
			t.Fatalf("pods are %v", n.dispatcher.UIDs())
		}
		n.dispatcher.RemovePod("3", file) // not its source
		n.wait(time.Minute)
		if !n.running("3") {
			t.Fatal("a source ended another's pod")
		}
	})
}

func TestAnEarlierVersionEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		var fails atomic.Bool
		var asked atomic.Int32
		fails.Store(true)
		n.dispatcher.deps.Supersede = func(_ context.Context, p *v1.Pod) error {
			asked.Add(1)
			if n.running(p.UID) {
				t.Error("asked after the start")
			}
			if fails.Load() {
				return errors.New("runtime is away")
			}
			return nil
		}
		defer n.run()()
		n.dispatcher.SetPod(staticPod("1"), file)
		n.dispatcher.SetPod(testPod("ordinary"), api)
		n.wait(time.Minute)
		if n.running("1") || !n.running("ordinary") {
			t.Fatal("started although an earlier version may run")
		}
		fails.Store(false)
		n.wait(time.Minute)
		before := asked.Load()
		n.wait(10 * time.Minute)
		if !n.running("1") || asked.Load() != before {
			t.Fatalf("not started, or asked again (%d)", asked.Load()-before)
		}
	})
}

func TestSyncedWhenEverySourceWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newRuntime())
		times := 0
		n.dispatcher.onSynced = func() { times++ }
		n.dispatcher.Expect(api, file)
		defer n.run()()
		n.dispatcher.SourceSynced(file)
		n.dispatcher.SourceSynced(file)
		n.wait(time.Second)
		if n.dispatcher.Synced() {
			t.Fatal("synced without the apiserver")
		}
		n.dispatcher.SourceSynced(api)
		n.dispatcher.SourceSynced(file)
		n.wait(time.Second)
		if !n.dispatcher.Synced() || times != 1 {
			t.Fatalf("told %d times", times)
		}
	})
}
