package assignment

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
)

// unevenness is how far apart shares may be, of the mean, before pods move for it.
const unevenness = 0.1

// Weight is how many probes a second a pod asks for; 0 when it has no probe.
func Weight(p *v1.Pod) float64 {
	weight := 0.0
	for c := range podutil.Containers(&p.Spec) {
		for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe != nil {
				weight += 1 / float64(max(probe.PeriodSeconds, 1))
			}
		}
	}
	return weight
}

// Balance returns for each pod the replica that is to probe it: the one that has it, if that lives and
// has not too much, else of the takers, which are among the living, the one with the least. Who lives
// takes if there is no taker. Pods that have a replica keep it while none lives.
func Balance(weights map[string]float64, current map[string]string, alive, takers []string) map[string]string {
	next := map[string]string{}
	load := make(map[string]float64, len(alive))
	for _, r := range alive {
		load[r] = 0
	}
	var homeless []string
	for uid, w := range weights {
		if _, lives := load[current[uid]]; lives {
			next[uid] = current[uid]
			load[current[uid]] += w
		} else {
			homeless = append(homeless, uid)
		}
	}
	if len(alive) == 0 {
		for _, uid := range homeless {
			if r := current[uid]; r != "" {
				next[uid] = r
			}
		}
		return next
	}
	heaviestFirst := func(a, b string) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b))
	}
	slices.SortFunc(homeless, heaviestFirst)
	if len(takers) == 0 {
		takers = alive
	}
	for _, uid := range homeless {
		r := least(load, takers)
		next[uid] = r
		load[r] += weights[uid]
	}
	even(weights, next, load, takers)
	return next
}

// even moves pods from the most loaded replica to the least loaded taker until no move brings them nearer.
func even(weights map[string]float64, next map[string]string, load map[string]float64, takers []string) {
	total := 0.0
	for _, l := range load {
		total += l
	}
	allowed := unevenness * total / float64(len(load))
	uids := slices.SortedFunc(maps.Keys(next), func(a, b string) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b))
	})
	for {
		from, to := most(load), least(load, takers)
		gap := load[from] - load[to]
		if gap <= allowed {
			return
		}
		moved := false
		for _, uid := range uids {
			// The heaviest that fits into half of the gap; one that only reverses it is no gain.
			if w := weights[uid]; next[uid] == from && w > 0 && w <= gap/2 {
				next[uid] = to
				load[from] -= w
				load[to] += w
				moved = true
				break
			}
		}
		if !moved {
			return
		}
	}
}

func least(load map[string]float64, of []string) string {
	return pick(load, of, func(a, b float64) bool { return a < b })
}

func most(load map[string]float64) string {
	return pick(load, slices.Collect(maps.Keys(load)), func(a, b float64) bool { return a > b })
}

// pick returns the best replica, the first by name of those that are alike.
func pick(load map[string]float64, of []string, better func(a, b float64) bool) string {
	best := ""
	for _, r := range slices.Sorted(slices.Values(of)) {
		if best == "" || better(load[r], load[best]) {
			best = r
		}
	}
	return best
}
