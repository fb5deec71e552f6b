package devices

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/resources/internal/devices/internal/checkpoint"
)

// model is what the node should have: which pod has which device of which resource.
type model struct {
	*node
	random *rand.Rand
	log    []string
	// placed are the pods that have a place, with what they ask for.
	placed map[types.UID]*v1.Pod
	// has are the devices of a pod: "container gpu:a".
	has map[types.UID]string
	// up are the plugins that are there, with their devices: "!a" is unhealthy.
	up   map[string][]string
	next int
}

var endpoints = map[string][]string{gpu: {"gpu-1.sock", "gpu-2.sock"}, nic: {"nic.sock"}}

// devicesAt are all that a plugin may have. Both plugins of GPUs have the same.
func devicesAt(resource string) []string {
	if resource == gpu {
		return []string{"a", "b", "c", "d", "e"}
	}
	return []string{"x", "y", "z"}
}

// TestModel compares random operations with a model.
func TestModel(t *testing.T) {
	runs, steps := 12, 100
	if s := os.Getenv("MODEL_RUNS"); s != "" {
		runs, _ = strconv.Atoi(s)
	}
	for seed := range runs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := &model{
					node: newNode(t), random: rand.New(rand.NewPCG(uint64(seed), 1)), placed: map[types.UID]*v1.Pod{},
					has: map[types.UID]string{}, up: map[string][]string{},
				}
				for range steps {
					m.step()
					m.check()
					if t.Failed() {
						t.Fatalf("after\n%s", strings.Join(m.log, "\n"))
					}
				}
			})
		})
	}
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *model) step() {
	resource := gpu
	if m.random.IntN(3) == 0 {
		resource = nic
	}
	endpoint := endpoints[resource][m.random.IntN(len(endpoints[resource]))]
	switch n := m.random.IntN(20); {
	case n < 3:
		m.registers(resource, endpoint)
	case n < 4:
		m.note("%s dies", endpoint)
		delete(m.up, endpoint)
		m.plugin(endpoint).dies()
	case n < 6:
		if ids := m.up[endpoint]; ids != nil {
			m.up[endpoint] = m.someOf(resource)
			m.note("%s reports %v", endpoint, m.up[endpoint])
			m.plugin(endpoint).reports(m.up[endpoint]...)
		}
	case n < 12:
		m.asks()
	case n < 15:
		m.asksAgain()
	case n < 17:
		m.ends()
	case n < 18:
		m.note("restart")
		m.restart()
	default:
		d := time.Duration(m.random.Int64N(int64(2 * time.Minute)))
		m.note("%s pass", d)
		time.Sleep(d)
	}
	synctest.Wait()
}

func (m *model) someOf(resource string) []string {
	ids := []string{}
	for _, id := range devicesAt(resource) {
		switch m.random.IntN(8) {
		case 0:
		case 1:
			ids = append(ids, "!"+id)
		default:
			ids = append(ids, id)
		}
	}
	return ids
}

func (m *model) registers(resource, endpoint string) {
	m.up[endpoint] = m.someOf(resource)
	m.note("%s registers with %v", endpoint, m.up[endpoint])
	m.register(resource, endpoint, m.up[endpoint]...)
}

func (m *model) asks() {
	uid := types.UID("pod-" + strconv.Itoa(m.next))
	m.next++
	var containers []v1.Container
	for _, kind := range []string{"init", "init-2", "sidecar", "app", "app-2"} {
		counts := map[string]int64{}
		for _, name := range []string{gpu, nic} {
			if m.random.IntN(3) == 0 {
				counts[name] = int64(m.random.IntN(3))
			}
		}
		containers = append(containers, asks(kind, counts))
	}
	m.placed[uid] = podOf(uid, containers...)
	m.decides(uid, false)
}

// any returns a pod that has a place.
func (m *model) any() types.UID {
	var uids []types.UID
	for uid := range m.placed {
		uids = append(uids, uid)
	}
	if len(uids) == 0 {
		return ""
	}
	slices.Sort(uids)
	return uids[m.random.IntN(len(uids))]
}

func (m *model) asksAgain() {
	if uid := m.any(); uid != "" {
		m.decides(uid, m.has[uid] != "" && m.random.IntN(2) == 0)
	}
}

// decides asks for a pod, and notes what the answer says.
func (m *model) decides(uid types.UID, running bool) {
	time.Sleep(time.Nanosecond)
	placed := Placed{}
	for other := range m.placed {
		placed.UIDs = append(placed.UIDs, other)
	}
	hangs := m.random.IntN(8) == 0
	for _, name := range []string{"gpu-1.sock", "gpu-2.sock", "nic.sock"} {
		f := m.plugin(name)
		f.mu.Lock()
		f.hangs = hangs
		f.mu.Unlock()
	}
	got := m.allocateWith(m.t.Context(), m.placed[uid], placed, running)
	m.note("%s running=%t hangs=%t: %s", uid, running, hangs, got)
	granted, is := strings.CutPrefix(got, "granted ")
	if !is {
		if running {
			m.t.Errorf("%s runs and is not granted what it has", uid)
		}
		if strings.HasPrefix(got, "Unexpected") {
			delete(m.placed, uid)
		}
		return
	}
	granted = strings.NewReplacer("!", "", "?", "").Replace(granted)
	if was := m.has[uid]; was != "" && !strings.HasPrefix(granted, was) && !running {
		// A resource that was not known then may have been added.
		for _, part := range strings.FieldsFunc(was, func(r rune) bool { return r == ' ' || r == ';' }) {
			if !strings.Contains(granted, part) {
				m.t.Errorf("%s had %s, and has %s", uid, was, granted)
			}
		}
	}
	m.has[uid] = granted
}

func (m *model) ends() {
	uid := m.any()
	if uid == "" {
		return
	}
	delete(m.placed, uid)
	if m.random.IntN(2) == 0 {
		m.note("%s is gone", uid)
		m.Leave(uid)
		delete(m.has, uid)
		return
	}
	m.note("%s has no place", uid)
}

// check compares what is known with the model, and the file with both.
func (m *model) check() {
	m.t.Helper()
	m.owners()
	for uid := range m.placed {
		got := strings.NewReplacer("!", "", "?", "").Replace(devicesOf(m.Pod(uid)))
		if got != m.has[uid] {
			m.t.Errorf("%s has %s, want %s", uid, got, m.has[uid])
		}
	}
	for uid := range m.Pods() {
		if m.has[uid] == "" {
			m.t.Errorf("%s has devices and should have none: %s", uid, devicesOf(m.Pod(uid)))
		}
	}
	m.disk()
}

// owners checks that each device has one pod, and one container of those that run at the same time.
func (m *model) owners() {
	owner := map[string]string{}
	for uid, pod := range m.Pods() {
		for _, c := range pod.Containers {
			if strings.HasPrefix(c.Name, "init") {
				c.Name = "init"
			}
			for _, devices := range c.Devices {
				for _, d := range devices.Devices {
					device := devices.Resource + " " + d.Id
					mine := fmt.Sprint(uid, " ", c.Name)
					was := owner[device]
					switch {
					case was == "" || was == mine || was == fmt.Sprint(uid, " init"):
						owner[device] = mine
					case mine == fmt.Sprint(uid, " init"):
						m.t.Errorf("%s has %s, and so has %s before it", mine, device, was)
					default:
						m.t.Errorf("%s has %s, and so has %s", mine, device, was)
					}
				}
			}
		}
	}
}

// disk checks that the file has what was granted. What is free again may be there for a moment.
func (m *model) disk() {
	_, c, err := checkpoint.Open(m.folder)
	if err != nil {
		m.t.Fatal(err)
	}
	stored := map[string]bool{}
	for _, e := range c.Entries {
		for id := range e.Devices {
			stored[fmt.Sprint(e.Pod, e.Container, e.Resource, id)] = true
		}
	}
	for uid, pod := range m.Pods() {
		for _, c := range pod.Containers {
			for _, devices := range c.Devices {
				for _, d := range devices.Devices {
					if !stored[fmt.Sprint(uid, c.Name, devices.Resource, d.Id)] {
						m.t.Errorf("the file lacks %s of %s", d.Id, uid)
					}
				}
			}
		}
	}
}

// TestManyAtOnce: pods that ask at the same time never get the same device, and none is lost.
func TestManyAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNode(t)
		f := n.plugin("gpu.sock")
		f.prefers = true
		f.prefer = func(available, _ []string, _ int) []string { return available }
		var ids []string
		for i := range 20 {
			ids = append(ids, fmt.Sprintf("%02d", i))
		}
		n.register(gpu, "gpu.sock", ids...)
		for range 10 {
			var wait sync.WaitGroup
			var placed []types.UID
			for i := range 30 {
				placed = append(placed, types.UID(fmt.Sprint("p", i)))
			}
			for i := range 30 {
				wait.Go(func() {
					pod := podOf(placed[i], asks("init", map[string]int64{gpu: 1}), asks("app", map[string]int64{gpu: 2}))
					if got := n.allocateWith(t.Context(), pod, Placed{UIDs: placed}, false); !strings.HasPrefix(got, "granted") &&
						!strings.Contains(got, "requested number of devices unavailable") {
						t.Error(got)
					}
				})
			}
			wait.Wait()
			owner := map[string]types.UID{}
			for uid, pod := range n.Pods() {
				for _, d := range pod.Containers[1].Devices[0].Devices {
					if owner[d.Id] != "" {
						t.Errorf("%s has %s, and so has %s", uid, d.Id, owner[d.Id])
					}
					owner[d.Id] = uid
				}
			}
			if len(owner) < 18 {
				t.Errorf("%d devices of 20 have pods that ask for two each", len(owner))
			}
			time.Sleep(time.Second)
			n.allocateWith(t.Context(), podOf("none"), Placed{}, false)
			if len(n.Pods()) != 0 {
				t.Errorf("pods without a place have %v", n.Pods())
			}
		}
	})
}
