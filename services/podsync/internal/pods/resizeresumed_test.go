package pods

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// TestPodsyncEndsBetweenTwoSteps of a resize. The next one ends it, without a restart, whether what was done was
// recorded or not.
func TestPodsyncEndsBetweenTwoSteps(t *testing.T) {
	from := []v1.ResourceRequirements{sizes("100m", "200m", "1000", "4Ki"), sizes("300m", "400m", "3000", "8Ki")}
	mixed := []v1.ResourceRequirements{sizes("400m", "500m", "2000", "6Ki"), sizes("50m", "100m", "1000", "7Ki")}
	smaller := []v1.ResourceRequirements{sizes("50m", "100m", "500", "3Ki"), sizes("50m", "100m", "1000", "7Ki")}
	for _, to := range [][]v1.ResourceRequirements{mixed, smaller} {
		for _, lost := range []bool{false, true} {
			for cut := 1; ; cut++ {
				if !endsAfterStep(t, cut, lost, from, to) {
					if cut < 9 {
						t.Errorf("a resize of %d steps", cut)
					}
					break
				}
			}
		}
	}
}

// shown is how has shows these resources.
func shown(r v1.ResourceRequirements) string {
	return fmt.Sprintf("memory=%d cpu=%d shares=%d", r.Limits.Memory().Value(), r.Limits.Cpu().MilliValue(),
		r.Requests.Cpu().MilliValue()*1024/1000)
}

// endsAfterStep ends podsync after a step, and reports whether there was one.
func endsAfterStep(t *testing.T, cut int, lost bool, from, to []v1.ResourceRequirements) (there bool) {
	t.Run(fmt.Sprint(cut, lost), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newResizedNode(t)
			p := resizedPod(withSibling(), from...)
			n.apply(p)
			ids, before := n.ids("a"), n.allocation.actuated["a"]
			dead := make(chan struct{})
			n.after = func(count int) {
				if count == cut {
					there = true
					<-dead // nothing happens any more
				}
			}
			larger := resizedPod(p, to...)
			n.allocation.decides = true
			n.apply(larger)
			n.allocation.grant("a")
			n.workers.Granted("a")
			n.wait(time.Second)
			n.mu.Lock()
			n.after = nil
			n.mu.Unlock()
			if !there {
				return
			}
			go close(dead)
			n.stop()
			if lost {
				n.allocation.actuated["a"] = before
			}
			n.begin()
			n.apply(larger)
			n.wait(5 * time.Second)
			n.want("containers", n.ids("a"), ids)
			n.want("c", n.has("a", "c"), shown(to[0]))
			n.want("sibling", n.has("a", "sibling"), shown(to[1]))
			n.want("the pod", n.groups.limits("a"), cgroupLimits(larger))
			all := n.reported()
			n.want("reported", all[len(all)-1], "completed a")
			n.want("recorded", n.allocation.actuated["a"].Containers,
				map[string]v1.ResourceRequirements{"c": to[0], "sibling": to[1]})
		})
	})
	return there
}

// TestAPodOfWhichNothingIsRecorded is taken over as it is. Only what differs from what was granted is given to it, and
// nothing restarts for that.
func TestAPodOfWhichNothingIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := restarting(resizedPod(withSibling(), sizes("100m", "", "", "8Ki"), sizes("100m", "", "", "8Ki")), 0,
			v1.ResourceMemory)
		n.apply(p)
		ids := n.ids("a")
		n.stop()
		delete(n.allocation.actuated, "a")
		n.begin()
		n.apply(p)
		n.wait(5 * time.Second)
		n.want("steps", n.takeSteps(), []string(nil))
		recorded := n.allocation.actuated["a"].Containers
		n.want("recorded", recorded, map[string]v1.ResourceRequirements{
			"c": p.Spec.Containers[0].Resources, "sibling": p.Spec.Containers[1].Resources,
		})

		// An earlier node agent has granted more, and given nothing.
		n.stop()
		delete(n.allocation.actuated, "a")
		larger := resizedPod(p, sizes("200m", "", "", "9Ki"), sizes("100m", "", "", "16Ki"))
		n.allocation.granted["a"] = pod.ResourcesOf(larger)
		n.begin()
		n.apply(larger)
		n.wait(5 * time.Second)
		n.want("steps", n.takeSteps(), []string{
			"sandbox memory=25600 cpu=none shares=200", "pod memory=25600 cpu=none shares=200",
			"container memory=16384 cpu=none shares=102",
			"sandbox memory=25600 cpu=none shares=300", "pod memory=25600 cpu=none shares=300",
			"container memory=9216 cpu=none shares=204",
		})
		n.want("containers", n.ids("a"), ids)
	})
}

// TestAResizeThatIsTakenBack while a part of it is done leaves nothing of it in force.
func TestAResizeThatIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newRunningPod(t, sizes("100m", "200m", "", "8Ki"))
		n.groups.use("a", n.ids("a")["c"], 5000)
		n.resize(resizedPod(p, sizes("900m", "900m", "", "4Ki")))
		n.want("has", n.has("a", "c"), "memory=8192 cpu=900 shares=921")
		n.reported()
		n.resize(p)
		n.want("has", n.has("a", "c"), "memory=8192 cpu=200 shares=102")
		n.want("the pod", n.groups.limits("a"), cgroupLimits(p))
		n.want("reported", n.reported(), []string{"actuating a", "completed a"})
	})
}

// TestAResizeThatIsTakenBackAtOnce ends although there is nothing to do for it.
func TestAResizeThatIsTakenBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newRunningPod(t, sizes("100m", "", "", ""))
		n.allocation.decides = true
		n.apply(resizedPod(p, sizes("200m", "", "", "")))
		n.allocation.grant("a")
		n.apply(p)
		n.allocation.grant("a")
		n.workers.Granted("a")
		n.wait(time.Second)
		n.want("reported", n.reported(), []string{"completed a"})
	})
}

// TestAContainerThatStartsAgainBeforeItsPodShrinks has what was granted. The pod has it too then.
func TestAContainerThatStartsAgainBeforeItsPodShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newRunningPod(t, sizes("", "", "", "8Ki"))
		n.groups.use("a", n.ids("a")["c"], 5000)
		smaller := resizedPod(p, sizes("", "", "", "4Ki"))
		n.resize(smaller)
		n.exit("c")
		n.wait(time.Minute)
		n.want("has", n.has("a", "c"), "memory=4096 cpu=none shares=2")
		n.groups.use("a", n.ids("a")["c"], 1000)
		n.wait(time.Minute)
		n.want("the pod", n.groups.limits("a"), cgroupLimits(smaller))
	})
}

// TestAResizeThatFailedIsTakenBack from the containers that had it before another step failed.
func TestAResizeThatFailedIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newResizedNode(t)
		p := resizedPod(testPod("a"), sizes("100m", "900m", "", ""))
		n.apply(p)
		n.groups.fail(nil, errors.New("device busy"))
		n.resize(resizedPod(p, sizes("100m", "300m", "", "")))
		n.want("has", n.has("a", "c"), "memory=none cpu=300 shares=102")
		n.groups.fail(nil, nil)
		n.resize(resizedPod(p, sizes("100m", "900m", "", "")))
		n.want("has", n.has("a", "c"), "memory=none cpu=900 shares=102")
	})
}

// TestTheCgroupOfAPodFollowsEachGrant when what changes is only what a container has that does not run.
func TestTheCgroupOfAPodFollowsEachGrant(t *testing.T) {
	large, small := sizes("", "500m", "", "8Ki"), sizes("", "200m", "", "4Ki")
	for name, test := range map[string]struct {
		change func(p *v1.Pod)
		wait   func(n *resizedNode)
		runs   string
	}{
		"an init container runs": {
			change: func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{Name: "i", Image: p.Spec.Containers[0].Image, Resources: small}}
			},
			wait: func(*resizedNode) {}, runs: "i",
		},
		"it waits for its restart": {
			change: func(*v1.Pod) {},
			wait: func(n *resizedNode) {
				for range 2 { // the first restart is at once
					n.exit("c")
					n.wait(time.Second)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newResizedNode(t)
				p := resizedPod(testPod("a"), large)
				test.change(p)
				n.apply(p)
				test.wait(n)
				if test.runs != "" {
					n.want("what runs", slices.Collect(maps.Keys(n.ids("a"))), []string{test.runs})
				} else {
					n.want("what runs", n.ids("a"), map[string]string{})
				}
				smaller := resizedPod(p, small)
				n.resize(smaller)
				n.want("the pod", n.groups.limits("a"), cgroupLimits(smaller))
				n.resize(p)
				n.want("the pod again", n.groups.limits("a"), cgroupLimits(p))
			})
		})
	}
}
