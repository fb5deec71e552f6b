package twins

import "math/rand/v2"

// Source draws the choices that an input is made of. An input is its list of choices: the same list makes
// the same input, and a shorter list, or one of smaller numbers, makes a simpler one. So a generator lets 0
// be the simplest choice.
type Source struct {
	random *rand.Rand // nil: what is not replayed is 0
	replay []int
	drawn  []int
}

// newSource is the source of one input of a run.
func newSource(seed, input uint64) *Source {
	return &Source{random: rand.New(rand.NewPCG(seed, input))}
}

// replayed is the source of the input of these choices.
func replayed(choices []int) *Source { return &Source{replay: choices} }

// Intn is at least 0 and less than n.
func (s *Source) Intn(n int) int {
	at, v := len(s.drawn), 0
	switch {
	case at < len(s.replay):
		v = min(s.replay[at], n-1)
	case s.random != nil:
		v = s.random.IntN(n)
	}
	s.drawn = append(s.drawn, v)
	return v
}

// Percent is true as often as it says.
func (s *Source) Percent(n int) bool { return s.Intn(100) >= 100-n }

// OneOf picks one of the values; the first is the simplest.
func OneOf[T any](s *Source, values ...T) T { return values[s.Intn(len(values))] }

// shrink looks for the simplest choices that still fail.
func shrink(choices []int, fails func([]int) bool) []int {
	left := 20000
	try := func(candidate []int) bool {
		left--
		if left < 0 || !fails(candidate) {
			return false
		}
		choices = candidate
		return true
	}
	for again := true; again && left > 0; {
		again = false
		for size := 16; size > 0; size /= 2 {
			for at := 0; at+size <= len(choices); {
				without := append(append([]int{}, choices[:at]...), choices[at+size:]...)
				if try(without) {
					again = true
				} else {
					at++
				}
			}
		}
		for at := range choices {
			for _, v := range []int{0, choices[at] / 2, choices[at] - 1} {
				if at >= len(choices) || v < 0 || v >= choices[at] {
					continue
				}
				smaller := append([]int{}, choices...)
				smaller[at] = v
				again = try(smaller) || again
			}
		}
	}
	return choices
}
